# SPDX-License-Identifier: Apache-2.0
"""Collects the nodes and weights of an encoder that is being written; weights are read from files at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools.files import LARGE_BYTES, LARGE_MODEL_BYTES, Model, Storage, Weights

from .tensors import Reader, Weight

OPSET, _IR_VERSION = 17, 8
_FLOAT_BYTES = 4
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
_AXES = ("batch", "sequence")
LOWEST = float(np.finfo(np.float32).min)


class EncoderGraph:
    """Nodes of opset 17; every method that adds one returns the name of its result.

    Args:
        takes_types: whether token_type_ids are an input.
    """

    def __init__(self, *, takes_types: bool) -> None:
        self.inputs = (IDS, MASK, TYPES) if takes_types else (IDS, MASK)
        self._nodes: list[NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}
        self._weights: dict[str, Weight] = {}
        self._scope = ""

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names of nodes begin with this, for reports."""
        outer, self._scope = self._scope, f"{self._scope}/{name}"
        yield
        self._scope = outer

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result."""
        output = f"{self._scope}/{op_type}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        """Numbers; equal ones share one constant."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(array, f"constant_{len(self._constants)}")
        return str(self._constants[key].name)

    def integers(self, *values: int) -> str:
        """Whole numbers [N], as axes and shapes are."""
        return self.constant(values, np.int64)

    def weight(self, weight: Weight) -> str:
        """A weight; taken again, it is the same constant."""
        self._weights[weight.name] = weight
        return weight.name

    def length(self) -> str:
        """S as a scalar."""
        return self.op("Squeeze", self.op("Shape", IDS, start=1, end=2), self.integers(0))

    def positions(self) -> str:
        """0 to S - 1, [S]."""
        return self.op("Range", self.constant(0, np.int64), self.length(), self.constant(1, np.int64))

    def to_model(self, outputs: Mapping[str, tuple[str, Sequence[int | str]]], storage: Storage) -> Model:
        """The model, with the weights read, or deferred where they are many (deferred_data.py).

        Args:
            outputs: by name of the output, its tensor and its dimensions after the batch.
            storage: where the weights are to be.
        """
        nodes = [*self._nodes]
        nodes += [helper.make_node("Identity", [result], [name]) for name, (result, _) in outputs.items()]
        graph = helper.make_graph(
            nodes,
            "encoder",
            [helper.make_tensor_value_info(name, TensorProto.INT64, _AXES) for name in self.inputs],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, (_AXES[0], *dims))
                for name, (_, dims) in outputs.items()
            ],
            [*self._constants.values()],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = Model(
            helper.make_model(graph, producer_name="padfree", opset_imports=opsets, ir_version=_IR_VERSION),
            Weights(storage),
        )
        self._read_weights(model)
        return model

    def _read_weights(self, model: Model) -> None:
        reader = Reader(model.weights)
        for weight in self._weights.values():
            reader.open(weight)
        sizes = {name: _FLOAT_BYTES * math.prod(weight.shape) for name, weight in self._weights.items()}
        is_large = sum(sizes.values()) > LARGE_MODEL_BYTES
        now = {name: weight for name, weight in self._weights.items() if not is_large or sizes[name] < LARGE_BYTES}
        for name, weight in self._weights.items():
            if name not in now:
                tensor = model.proto.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=weight.shape)
                model.weights.hold(tensor, reader.defer(weight))
        with ThreadPoolExecutor() as pool:
            for name, values in zip(now, pool.map(reader.read, now.values()), strict=True):
                _hold(model, name, values)
        model.weights.align()


def _hold(model: Model, name: str, values: npt.NDArray[np.float32]) -> None:
    proto: ModelProto = model.proto
    if values.nbytes >= LARGE_BYTES:
        model.weights.hold_array(proto.graph.initializer.add(name=name), values)
    else:
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
