# SPDX-License-Identifier: Apache-2.0
"""What a model computes between two tensors, in a form that stretches share if they differ only in weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from ..files import LARGE_BYTES, Model, bytes_of, copy_message
from ..operators import DOMAIN, OPERATORS, node_attributes

Form: TypeAlias = tuple[object, ...]
Cut: TypeAlias = tuple[str, ...]

_MOST_TENSORS = 2  # tensors in a cut: rows of tokens, and their sum with the result of the layer before
_MOST_STEPS = 32  # times a model's nodes: there are more steps where all stretches repeat the same long computation
_NEVER = -1
_MATRICES: Mapping[str, tuple[int, ...]] = MappingProxyType({"MatMul": (1,), "Gemm": (1, 2)})
_ROWS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("Add", "Sub", "Mul", "Div"), (0, 1)),
        **dict.fromkeys(("LayerNormalization", "RMSNormalization"), (1, 2)),
    }
)
"""Standard operators with the input positions where weights along features may be: one row for all tokens."""
_OWN = frozenset({"gamma", "beta", "bias", "qkv_bias", "pooler_weight", "pooler_bias"})
"""The inputs of padfree operators that are such weights, by their names."""


class Stretches:
    """A graph that is compared in stretches between tensors that all paths of tokens go through."""

    def __init__(self, model: Model) -> None:
        self.graph: GraphProto = model.proto.graph
        self._nodes: Sequence[NodeProto] = list(self.graph.node)
        # Names are read from protobuf once: cuts and forms walk over all nodes many times.
        self._node_outputs = [tuple(name for name in node.output if name) for node in self._nodes]
        self._carries = [tuple(node.input) if _carries(node) else () for node in self._nodes]
        self._makers = {name: at for at, names in enumerate(self._node_outputs) for name in names}
        self._outputs = {item.name for item in self.graph.output}
        self._weights = {tensor.name: tensor for tensor in self.graph.initializer}
        self._flows: set[str] = set()
        self._vary: set[str] = set()  # weights along features

    @classmethod
    def of(cls, model: Model) -> Stretches | None:
        """A model's graph; None where it holds subgraphs, or nodes that come before those whose results they read."""
        result = cls(model)
        for at, node in enumerate(result._nodes):
            if any(item.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for item in node.attribute):
                return None
            if any(result._makers.get(name, _NEVER) >= at for name in node.input):
                return None
        return result

    def makes(self, name: str) -> bool:
        """Whether a node makes the tensor, and it is not an output of the graph."""
        return name in self._makers and name not in self._outputs

    def in_order(self, names: Iterable[str]) -> list[str]:
        """The names of tensors that the graph makes, in the order in which it makes them; others are left out."""
        return sorted((name for name in names if self.makes(name)), key=self._makers.__getitem__)

    def cuts(self, start: str) -> list[Cut]:
        """The cuts, in order: the few tensors that all values computed from `start` pass through, except shapes."""
        flows = self._following(start)
        reads = dict.fromkeys(flows, _NEVER)
        for at, names in enumerate(self._carries):
            for name in names:
                if name in flows:
                    reads[name] = at
        reads |= dict.fromkeys(self._outputs & flows, len(self._nodes))
        unique, names_needed = dict[Cut, None](), list[str]()
        for at in range(self._makers[start], len(self._nodes)):
            names_needed = [name for name in (*names_needed, *self._node_outputs[at]) if reads.get(name, _NEVER) > at]
            if 0 < len(names_needed) <= _MOST_TENSORS:
                unique[tuple(sorted(names_needed, key=self._makers.__getitem__))] = None
        return [cut for cut in unique if self._outputs.isdisjoint(cut)]

    def forms(self, start: str, cuts: Sequence[Cut]) -> list[Form] | None:
        """What is computed from each of these cuts of `start` to the next; None where finding out takes too long."""
        self._flows = self._following(start)
        self._vary = self._weights_along_features()
        steps, all_forms = _MOST_STEPS * len(self._nodes), list[Form]()
        for first, last in pairwise(cuts):
            form = self._form(first, last)
            steps -= len(form)
            if steps < 0:
                return None
            all_forms.append(form)
        return all_forms

    def between(self, first: Cut, last: Cut) -> set[str]:
        """Tensors of tokens that are made after `first`, up to and including `last`."""
        outputs = self._node_outputs[self._end(first) + 1 : self._end(last) + 1]
        return {name for names in outputs for name in names if name in self._flows}

    def _end(self, cut: Cut) -> int:
        return max(self._makers[name] for name in cut)

    def _following(self, start: str) -> set[str]:
        """The tensor, and all that is computed from its numbers."""
        names = {start}
        after = self._makers[start] + 1
        for inputs, outputs in zip(self._carries[after:], self._node_outputs[after:], strict=True):
            if not names.isdisjoint(inputs):
                names.update(outputs)
        return names

    def _form(self, first: Cut, last: Cut) -> Form:
        """The nodes from one cut to another, each with the numbers of its inputs, in depth-first order from the end."""
        numbers, form = {"": -1, **{name: at for at, name in enumerate(first)}}, list[object]()
        before, waiting = self._end(first), [(name, False) for name in last]
        while waiting:
            name, is_ready = waiting.pop()
            if name in numbers:
                continue
            at = self._makers.get(name)
            if at is None or (name in self._flows and at <= before):
                numbers[name] = len(numbers)
                form.append(self._leaf(name))
            elif is_ready:
                node = self._nodes[at]
                form.append((*_head(node), tuple(numbers[item] for item in node.input)))
                numbers |= {item: len(numbers) + index for index, item in enumerate(node.output) if item}
            else:
                waiting.append((name, True))
                waiting += [(item, False) for item in reversed(self._nodes[at].input)]
        return (*form, *(numbers[name] for name in last))

    def _leaf(self, name: str) -> Form:
        tensor = self._weights.get(name)
        if tensor is None:
            return ("given", name)
        kind = (tensor.data_type, *tensor.dims)
        if name in self._vary:
            return ("weight", *kind)
        if _is_large(tensor):
            return ("large", name, *kind)
        stub = copy_message(tensor)
        stub.ClearField("name")
        return ("numbers", stub.SerializeToString(deterministic=True))

    def _weights_along_features(self) -> set[str]:
        """The weights that may differ: all nodes that read them do so along features."""
        readers: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in self._nodes:
            for index, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, index))
        return {
            name
            for name, tensor in self._weights.items()
            if tensor.data_type == TensorProto.FLOAT
            and math.prod(tensor.dims) > 1
            and name not in self._outputs
            and all(self._is_along_features(tensor, node, index, readers) for node, index in readers.get(name, ()))
        }

    def _is_along_features(
        self, tensor: TensorProto, node: NodeProto, index: int, readers: Mapping[str, list[tuple[NodeProto, int]]]
    ) -> bool:
        of_tokens, rank = not self._flows.isdisjoint(node.input), len(tensor.dims)
        if node.domain == DOMAIN:
            specs = OPERATORS[node.op_type].inputs_for(node_attributes(node))
            return of_tokens and specs[index].name in _OWN
        if node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type == "Transpose" and rank == 2:  # exporters write linear layers this way
            after = readers.get(node.output[0], [])
            return all(other.op_type in _MATRICES and at == 1 and other.domain == "" for other, at in after)
        if rank == 2 and index in _MATRICES.get(node.op_type, ()):
            return of_tokens or _is_large(tensor)  # small ones may be frequencies of positions
        return of_tokens and rank == 1 and index in (*_ROWS.get(node.op_type, ()), *_MATRICES.get(node.op_type, ()))


def _carries(node: NodeProto) -> bool:
    """Whether a node's results depend on the numbers that it reads, and not only on their shape."""
    return node.op_type not in ("Shape", "Size") or node.domain not in ("", "ai.onnx")


def _head(node: NodeProto) -> tuple[object, ...]:
    return (node.domain, node.op_type, node.overload, len(node.output), *sorted(map(_nameless, node.attribute)))


def _nameless(attribute: AttributeProto) -> bytes:
    """An attribute's bytes, without the name that its tensor may have."""
    if attribute.HasField("t"):
        attribute = copy_message(attribute)
        attribute.t.ClearField("name")
    return bytes(attribute.SerializeToString(deterministic=True))


def _is_large(tensor: TensorProto) -> bool:
    return (bytes_of(tensor) or 0) >= LARGE_BYTES
