# SPDX-License-Identifier: Apache-2.0
"""Folds factors before GEMMs, which SmoothQuant and AWQ write to even out activations, into the weights.

ModelOpt multiplies the input of a quantised GEMM by a number for each feature, and divides the rows of the weight by
it. Where nothing is rounded in between, the weight takes the factors back; GEMMs that read the same tensor can be one
GEMM again then.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from onnx import NodeProto

from ...analysis import STANDARD_DOMAINS
from ...files import Floats, Model, copy_message, replace_items
from ..skeleton import Names
from .constants import Constants

_ROOTS = ("Sqrt", "Reciprocal", "Pow", "Div")
_MOST_AXES = 2
"""The most axes of factors, and the fewest of a GEMM's input: with more, factors would give the GEMM another axis."""


def fold_scales(model: Model) -> Model:
    """The model with such factors in its weights; itself where there are none."""
    return _ScaleFolding(model).run()


class _ScaleFolding:
    """The factors of one model."""

    def __init__(self, model: Model) -> None:
        self._model = model
        graph = model.proto.graph
        self._constants = Constants(model)
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers = defaultdict[str, list[NodeProto]](list)
        for node in graph.node:
            for name in set(node.input):
                self._readers[name].append(node)
        self._outputs = {value.name for value in graph.output}

    def run(self) -> Model:
        """Decides for every Mul, then writes the graph anew."""
        folded: dict[str, tuple[str, str, Floats]] = {}  # output of a MatMul -> its new input, its weight, the factors
        scaled_names = set[str]()
        for node in self._model.proto.graph.node:
            pair = self._factors(node)
            if pair is None:
                continue
            x, factors = pair
            readers = self._readers[node.output[0]]
            if readers and all(self._is_gemm(reader, node.output[0], len(factors)) for reader in readers):
                folded |= {reader.output[0]: (x, reader.input[1], factors) for reader in readers}
                scaled_names.add(node.output[0])
        return self._rewrite(folded, scaled_names) if folded else self._model

    def _factors(self, node: NodeProto) -> tuple[str, Floats] | None:
        """For a Mul by a constant for every feature, the tensor that it multiplies, and the factors."""
        if node.op_type != "Mul" or node.domain not in STANDARD_DOMAINS or node.output[0] in self._outputs:
            return None
        constants = [self._constant(name) for name in node.input]
        at = 1 if constants[0] is None else 0
        factors = constants[at]
        if factors is None or constants[1 - at] is not None or factors.size < 2 or factors.shape[-1] != factors.size:
            return None
        if factors.ndim > _MOST_AXES:
            return None
        x = str(node.input[1 - at])
        return None if self._is_normalized(x) else (x, factors.ravel())

    def _is_normalized(self, name: str) -> bool:
        """Whether a written-out norm without shift makes the tensor: the factors are the norm's own weight then."""
        maker = self._maker(name)
        if maker is None or maker.op_type not in ("Mul", "Div"):
            return False
        return any((inner := self._maker(item)) is not None and inner.op_type in _ROOTS for item in maker.input)

    def _maker(self, name: str) -> NodeProto | None:
        maker = self._makers.get(name)
        while maker is not None and maker.op_type == "Cast":
            maker = self._makers.get(maker.input[0])
        return maker

    def _is_gemm(self, node: NodeProto, x: str, width: int) -> bool:
        if node.op_type != "MatMul" or node.domain not in STANDARD_DOMAINS or node.input[0] != x or node.input[1] == x:
            return False
        weight = self._weight(node.input[1])
        return weight is not None and len(weight) == width

    def _weight(self, name: str) -> Floats | None:
        """A constant weight [K,N]; None for other tensors."""
        values = self._constant(name)
        return values if values is not None and values.ndim == 2 else None

    def _constant(self, name: str) -> Floats | None:
        values = self._constants.array(name)
        return values.astype(np.float32) if values is not None and values.dtype.kind == "f" else None

    def _rewrite(self, folded: dict[str, tuple[str, str, Floats]], scaled_names: set[str]) -> Model:
        result = Model(copy_message(self._model.proto), self._model.weights.copy())
        graph = result.proto.graph
        names = Names(graph)
        nodes = [node for node in graph.node if not scaled_names.intersection(node.output)]
        for node in nodes:
            if node.output[0] not in folded:
                continue
            x, name, factors = folded[node.output[0]]
            weight = self._weight(name)
            if weight is None:
                raise AssertionError("GEMMs have constant weights")
            scaled_name = names.fresh(f"{node.name or node.output[0]}_weight")
            result.add_weight(scaled_name, np.ascontiguousarray(weight * factors[:, np.newaxis], np.float32))
            node.input[:] = [x, scaled_name]
        replace_items(graph.node, nodes)
        return result
