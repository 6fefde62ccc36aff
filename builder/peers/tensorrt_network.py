# SPDX-License-Identifier: Apache-2.0
"""Networks of fixed shapes, written by hand for TensorRT 10 and run on PyTorch's memory: for others' plugins."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FP16_FLAG = "FP16"  # not in TensorRT 11, whose networks are all strongly typed


@functools.cache
def shared_builder(trt: Any) -> Any:
    """TensorRT's builder, which takes seconds to make."""
    return trt.Builder(logger(trt))


@functools.cache
def logger(trt: Any) -> Any:
    """A logger that prints errors."""
    return trt.Logger(trt.Logger.ERROR)


@dataclass(frozen=True)
class Engine:
    """An execution context with what it needs to live."""

    engine: Any
    context: Any

    def run(self, tensors: Mapping[str, Any]) -> None:
        """Enqueues the engine on PyTorch's current stream."""
        import torch

        for name, tensor in tensors.items():
            self.context.set_tensor_address(name, tensor.data_ptr())
        if not self.context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("TensorRT could not enqueue the engine")


class FixedNetwork:
    """A weakly typed network of fixed shapes, and the engine that TensorRT builds of it in fp16.

    Raises RuntimeError where TensorRT has no such plugin or builds no engine.
    """

    def __init__(self, trt: Any) -> None:
        self.trt = trt
        self.network = shared_builder(trt).create_network(0)
        self._buffers: list[Any] = []  # weights are read when the engine is built

    def input(self, name: str, shape: Sequence[int], dtype: Any) -> Any:
        """A network input."""
        return self.network.add_input(name, dtype, tuple(shape))

    def constant(self, values: Any) -> Any:
        """A constant."""
        return self.network.add_constant(values.shape, self._weights(values)).get_output(0)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """x [T, K, 1, 1] by weight [N, K] plus bias [N], as a 1 x 1 convolution."""
        kernel = self._weights(weight)
        layer = self.network.add_convolution_nd(x, weight.shape[0], (1, 1), kernel, self._weights(bias))
        return layer.get_output(0)

    def gelu(self, x: Any) -> Any:
        """GELU by the error function."""
        return self.network.add_activation(x, self.trt.ActivationType.GELU_ERF).get_output(0)

    def plugin(
        self, name: str, version: str, floats: Mapping[str, Any], integers: Mapping[str, int], operands: Sequence[Any]
    ) -> Any:
        """A layer of one of TensorRT's own plugins."""
        trt = self.trt
        trt.init_libnvinfer_plugins(logger(trt), "")
        creator = trt.get_plugin_registry().get_plugin_creator(name, version, "")
        if creator is None:
            raise RuntimeError(f"TensorRT {trt.__version__} has no {name} of version {version}")
        arrays = {field: np.ascontiguousarray(values, np.float32) for field, values in floats.items()}
        scalars = {field: np.array([value], np.int32) for field, value in integers.items()}
        kinds = ((arrays, trt.PluginFieldType.FLOAT32), (scalars, trt.PluginFieldType.INT32))
        fields = [trt.PluginField(field, array, kind) for group, kind in kinds for field, array in group.items()]
        self._buffers += [*arrays.values(), *scalars.values()]
        plugin = creator.create_plugin(name, trt.PluginFieldCollection(fields))
        if plugin is None:
            raise RuntimeError(f"TensorRT could not create {name} with {dict(integers)}")
        return self.network.add_plugin_v2(list(operands), plugin)

    def build(self, output: Any, dtype: Any) -> Engine:
        """Builds the engine; its output is called y."""
        trt = self.trt
        output.name = "y"
        self.network.mark_output(output)
        output.dtype = dtype
        config = shared_builder(trt).create_builder_config()
        config.set_flag(getattr(trt.BuilderFlag, FP16_FLAG))
        config.max_aux_streams = 0
        plan = shared_builder(trt).build_serialized_network(self.network, config)
        if plan is None:
            raise RuntimeError("TensorRT could not build the engine")
        engine = trt.Runtime(logger(trt)).deserialize_cuda_engine(plan)
        return Engine(engine, engine.create_execution_context())

    def _weights(self, values: Any) -> Any:
        array = np.ascontiguousarray(values)
        self._buffers.append(array)
        return self.trt.Weights(array)
