# SPDX-License-Identifier: Apache-2.0
"""Files with QuantizeLinear and DequantizeLinear, as ModelOpt and onnxruntime write them, without these nodes.

`rounding_nodes` tells which nodes count.

Weights become the numbers that the file's stand for: those that training or rounding left. Activations lose their
rounding; where it cut off everything below zero, a Relu does that. GEMMs that are to be in e4m3 again get their scales
from calibration (onnx_tools/eight_bits.py), on packed batches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from ...files import Array, Model, all_nodes, copy_message, replace_items
from ..canonical import sort_nodes
from .constants import Constants
from .pairs import Pairs, check_scale, pair_error
from .rounding import NAMES
from .rounding_nodes import dequantizes, drop_unused_domain, quantizes
from .signs import Signs
from .smoothing import fold_scales

_DYNAMIC = "DynamicQuantizeLinear"


@dataclass(frozen=True)
class UnquantizedModel:
    """A model without Q/DQ, and what was taken out: types, numbers of weights and activations, activations' types."""

    model: Model
    types: tuple[str, ...]
    weights: int
    activations: int
    activation_types: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The values that the metadata has."""
        return {"types": list(self.types), "weights": self.weights, "activations": self.activations}


def holds_quantization(model: ModelProto) -> bool:
    """Whether activations or weights are rounded by QuantizeLinear and DequantizeLinear, one after the other.

    Other files stay as they are: those where only weights are stored as integers, those that compute with quantised
    numbers (QLinearMatMul, MatMulInteger), and those whose scales are of blocks, or of a batch (DynamicQuantizeLinear).
    """
    nodes = list(model.graph.node)
    quantized = {name for node in nodes if quantizes(node) for name in node.output}
    readers = [node for node in nodes if quantized.intersection(node.input)]
    in_blocks = any(item.name == "block_size" and item.i for node in nodes for item in node.attribute)
    result_names = {name for node in nodes if node.op_type not in ("Constant", "Identity") for name in node.output}
    result_names |= {value.name for value in model.graph.input} - {item.name for item in model.graph.initializer}
    is_known = all(dequantizes(node) for node in readers) and all(
        node.input[0] in quantized or node.input[0] not in result_names for node in nodes if dequantizes(node)
    )
    return bool(quantized) and is_known and not in_blocks and all(node.op_type != _DYNAMIC for node in nodes)


def without_quantization(model: Model) -> UnquantizedModel:
    """The model without these nodes, and with the factors of SmoothQuant in the weights after them.

    Raises RewriteError for scales of weights that are not positive finite constants, for blocks, for numbers that are
    quantised by one scale and dequantised by another, and for a DequantizeLinear that reads neither a weight nor the
    result of a QuantizeLinear.
    """
    removal = _Removal(model).run()
    return replace(removal, model=fold_scales(removal.model))


def without_rounding(model: Model) -> UnquantizedModel:
    """The model without these nodes at activations; weights stay as the file has them.

    Raises RewriteError as without_quantization does.
    """
    return _Removal(model, keeps_weights=True).run()


@dataclass
class _Removal:
    """Takes the nodes out of a copy of one model."""

    source: Model
    keeps_weights: bool = False
    _weights: dict[str, Array] = field(default_factory=dict)
    _new_names: dict[str, str] = field(default_factory=dict)
    _cut: dict[str, str] = field(default_factory=dict)  # a Relu's output -> its input

    def __post_init__(self) -> None:
        self.source = self.source.with_proto(sort_nodes(self.source.proto))
        self._constants = Constants(self.source)
        self._pairs = Pairs(self.source, self._constants)
        self._signs = Signs(self.source.proto, self._constants, self._weight_of, self._cuts)

    def run(self) -> UnquantizedModel:
        """Decides for every DequantizeLinear, then writes the graph anew."""
        kinds, rounded = Counter[str](), Counter[str]()
        activations, weights = dict[str, str](), set[str]()
        for node in self.source.proto.graph.node:
            if not dequantizes(node):
                continue
            rounding, quantity = self._pairs.rounding(node), node.input[0]
            kinds[NAMES[rounding.kind]] += 1
            maker = self._pairs.quantizer(node)
            if maker is not None:
                self._pairs.check_same(maker, node)
            elif quantity not in self._constants:
                raise pair_error(node, f"reads '{quantity}', which is no weight and not what a QuantizeLinear makes")
            if maker is not None and maker.input[0] not in self._constants:
                self._take_out(node, maker.input[0], activations.get(quantity))
                activations.setdefault(quantity, node.output[0])
                rounded[NAMES[rounding.kind]] += 1
                continue
            check_scale(node, rounding.scale, np.isfinite(rounding.scale))
            weights.add(quantity)
            if not self.keeps_weights:
                self._weights[node.output[0]] = self._pairs.weight(node)[1]
        types, of_activations = (tuple(name for name, _ in counter.most_common()) for counter in (kinds, rounded))
        return UnquantizedModel(self._rewrite(), types, len(weights), len(activations), of_activations)

    def _take_out(self, node: NodeProto, x: str, before: str | None) -> None:
        """Takes out a DequantizeLinear of x; `before` is the output of an earlier one of the same numbers."""
        if before is not None:
            self._new_names[node.output[0]] = before
        elif self._cuts(node) and self._signs.may_be_negative(x):
            self._cut[node.output[0]] = x
        else:
            self._new_names[node.output[0]] = x

    def _cuts(self, node: NodeProto) -> bool:
        return self._pairs.rounding(node).cuts_negatives()

    def _weight_of(self, node: NodeProto) -> Array | None:
        return self._pairs.weight(node)[1] if self._pairs.rounds_weight(node) else None

    def _rewrite(self) -> Model:
        """The model without the nodes; the readers of their results read the numbers that were rounded."""
        result = Model(copy_message(self.source.proto), self.source.weights.copy())
        graph = result.proto.graph
        for node in all_nodes(graph):
            for position, name in enumerate(node.input):
                node.input[position] = self._follow(name)
        nodes = [self._keep(node) for node in graph.node if not self._is_gone(node)]
        outputs = {value.name for value in graph.output}
        nodes += [
            helper.make_node("Identity", [self._follow(name)], [name]) for name in self._new_names if name in outputs
        ]
        replace_items(graph.node, nodes)
        names_read = _read(graph)
        others = (node for node in nodes if not quantizes(node) or names_read.intersection(node.output))
        replace_items(graph.node, others)
        unread_names = {item.name for item in graph.initializer} - _read(graph)
        replace_items(graph.initializer, [item for item in graph.initializer if item.name not in unread_names])
        replace_items(graph.input, [item for item in graph.input if item.name not in unread_names])
        del graph.value_info[:]
        drop_unused_domain(result.proto)
        for name, values in self._weights.items():
            result.add_weight(name, np.ascontiguousarray(values, np.float32))
        return result

    def _is_gone(self, node: NodeProto) -> bool:
        return any(name in self._weights or name in self._new_names for name in node.output)

    def _keep(self, node: NodeProto) -> NodeProto:
        """The node, or the Relu in its place."""
        output_name = node.output[0] if node.output else ""
        x = self._cut.get(output_name)
        return node if x is None else helper.make_node("Relu", [self._follow(x)], [output_name], f"{output_name}_relu")

    def _follow(self, name: str) -> str:
        while name in self._new_names:
            name = self._new_names[name]
        return name


def _read(graph: GraphProto) -> set[str]:
    """The names that nodes read, and those of outputs."""
    return {name for node in all_nodes(graph) for name in node.input} | {value.name for value in graph.output}
