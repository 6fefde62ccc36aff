# SPDX-License-Identifier: Apache-2.0
"""Attention by TensorRT for the attention benchmark: its own fusion, and NVIDIA's varseqlen plugin (TensorRT 10)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorrt as trt
import torch
from attention_peers import DEVICE, Launch, Problem, UnsupportedError, padding, unpadding

FUSED_LIMIT = 512
"""Longest padded batch for which an engine is built: TensorRT searches its tactics at every shape."""
PLUGIN_LIMIT = 384
"""The plugin's longest sequence; the next larger kernel, for 512, gives wrong numbers on Hopper."""
PLUGIN_HEAD_SIZE = 64
PLUGIN_VERSION = "2"
MASKED = -1e4

_LOGGER = trt.Logger(trt.Logger.ERROR)


@dataclass(frozen=True)
class Engine:
    """An execution context with what it needs to live."""

    engine: Any
    context: Any

    def run(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Enqueues the engine on the current stream."""
        for name, tensor in tensors.items():
            self.context.set_tensor_address(name, tensor.data_ptr())
        if not self.context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("TensorRT could not enqueue the engine")


@functools.cache
def shared_builder() -> Any:
    """TensorRT's builder, which takes seconds to make."""
    return trt.Builder(_LOGGER)


class NetworkBuilder:
    """A network of fixed shapes, and the engine that TensorRT builds of it."""

    def __init__(self) -> None:
        self.network = shared_builder().create_network(0)

    def input(self, name: str, shape: Sequence[int], dtype: Any) -> Any:
        """A network input."""
        return self.network.add_input(name, dtype, tuple(shape))

    def build(self, output: Any) -> Engine:
        """Builds the engine whose fp16 output is called y."""
        output.name = "y"
        self.network.mark_output(output)
        output.dtype = trt.float16
        config = shared_builder().create_builder_config()
        config.set_flag(trt.BuilderFlag.FP16)
        config.max_aux_streams = 0
        plan = shared_builder().build_serialized_network(self.network, config)
        if plan is None:
            raise UnsupportedError("TensorRT could not build the engine")
        engine = trt.Runtime(_LOGGER).deserialize_cuda_engine(plan)
        return Engine(engine, engine.create_execution_context())


def fused(problem: Problem) -> Launch:
    """Padded matmul, softmax, matmul, which TensorRT fuses into one kernel where it has one.

    Q, K and V are padded and transposed to [B, H, S, D] beforehand; the padding mask is added to the scores.
    """
    case = problem.case
    if case.longest > FUSED_LIMIT:
        raise UnsupportedError(f"engines are built for padded lengths up to {FUSED_LIMIT}")
    batch, longest = len(case.lengths), case.longest
    shape = (batch, case.heads, longest, case.head_size)
    builder = NetworkBuilder()
    network, operation = builder.network, trt.MatrixOperation
    q, k, v = (builder.input(name, shape, trt.float16) for name in "qkv")
    scores = network.add_matrix_multiply(q, operation.NONE, k, operation.TRANSPOSE).get_output(0)
    factor = np.full((1, 1, 1, 1), problem.scale, np.float16)
    scale = network.add_constant(factor.shape, trt.Weights(factor)).get_output(0)
    scores = network.add_elementwise(scores, scale, trt.ElementWiseOperation.PROD).get_output(0)
    constants: dict[str, torch.Tensor] = {}
    if not case.equal_lengths:
        mask = builder.input("mask", (batch, 1, 1, longest), trt.float16)
        scores = network.add_elementwise(scores, mask, trt.ElementWiseOperation.SUM).get_output(0)
        lengths = torch.tensor(case.lengths, device=DEVICE).view(-1, 1)
        masked = torch.arange(longest, device=DEVICE) >= lengths
        constants["mask"] = (masked * MASKED).half().view(batch, 1, 1, longest)
    softmax = network.add_softmax(scores)
    softmax.axes = 1 << 3
    product = network.add_matrix_multiply(softmax.get_output(0), operation.NONE, v, operation.NONE)
    engine = builder.build(product.get_output(0))

    pad = padding(problem)
    inputs = [tuple(pad(operand) for operand in problem.operands(index)) for index in range(len(problem.inputs))]
    outputs = [torch.empty(shape, dtype=torch.float16, device=DEVICE) for _ in problem.inputs]

    def run(index: int) -> torch.Tensor:
        tensors = dict(zip("qkv", inputs[index], strict=True))
        engine.run({**tensors, **constants, "y": outputs[index]})
        return outputs[index]

    return Launch(run, unpadding(problem))


def varseqlen_plugin(problem: Problem) -> Launch:
    """CustomQKVToContextPluginDynamic over packed sequences; it takes [T, H, 3, D], arranged so beforehand."""
    case = problem.case
    if case.head_size != PLUGIN_HEAD_SIZE or case.longest > PLUGIN_LIMIT:
        raise UnsupportedError(f"the plugin takes heads of {PLUGIN_HEAD_SIZE} and lengths up to {PLUGIN_LIMIT}")
    trt.init_libnvinfer_plugins(_LOGGER, "")
    name = "CustomQKVToContextPluginDynamic"
    creator = trt.get_plugin_registry().get_plugin_creator(name, PLUGIN_VERSION, "")
    if creator is None:
        raise UnsupportedError(f"this TensorRT has no {name} of version {PLUGIN_VERSION}")
    width = case.heads * case.head_size
    values = {
        "type_id": int(trt.float16),
        "hidden_size": width,
        "num_heads": case.heads,
        "has_mask": 1,
        "var_seqlen": 1,
    }
    arrays = {field: np.array([value], np.int32) for field, value in values.items()}
    fields = [trt.PluginField(field, array, trt.PluginFieldType.INT32) for field, array in arrays.items()]
    plugin = creator.create_plugin("attention", trt.PluginFieldCollection(fields))
    builder = NetworkBuilder()
    operands = [
        builder.input("qkv", (case.tokens, 3 * width, 1, 1), trt.float16),
        builder.input("unused", (1,), trt.int32),
        builder.input("cu_seqlens", (len(case.lengths) + 1,), trt.int32),
        builder.input("longest", (case.longest,), trt.int32),
    ]
    engine = builder.build(builder.network.add_plugin_v2(operands, plugin).get_output(0))

    inputs = [qkv.transpose(1, 2).contiguous() for qkv in problem.inputs]
    outputs = [torch.empty(case.tokens, width, dtype=torch.float16, device=DEVICE) for _ in problem.inputs]
    constants = {
        "unused": torch.zeros(1, dtype=torch.int32, device=DEVICE),
        "cu_seqlens": problem.cu_seqlens,
        "longest": torch.zeros(case.longest, dtype=torch.int32, device=DEVICE),
    }

    def run(index: int) -> torch.Tensor:
        engine.run({**constants, "qkv": inputs[index], "y": outputs[index]})
        return outputs[index]

    return Launch(run)
