# SPDX-License-Identifier: Apache-2.0
"""Runs a large model in onnxruntime part by part, so that only the weights of one part are in memory.

A part is some of the nodes, in their order. Its inputs are results of earlier parts, and its weights, which are read
for it. Of tables that ids choose from, only the chosen rows are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from .deferred_data import Array, DeferredData
from .model import Model, copy_message, fed_inputs, replace_items, without_initializers

PART_BYTES = 1 << 27
"""The most bytes of the weights of a part, unless a single one is larger."""
PARTS = 8
"""How many parts a model has at least, unless that takes a limit below LEAST_PART_BYTES."""
LEAST_PART_BYTES = 1 << 25
"""The limit of a part's weights is not made lower than this to have PARTS of them: every part takes time of its own."""
KEPT_BYTES = 1 << 25
"""Weights of at most so many bytes, tables not counted, are read once for all runs; larger ones anew for every run."""
_IDS: Mapping[str, int] = MappingProxyType({"Gather": 1, "PadfreeEmbedding": 0, "PadfreeTokenRows": 0})
"""Operators whose first deferred input is a table, and the position of the ids that choose from it."""
_INT64 = np.int64


@dataclass(frozen=True)
class _Table:
    """A table [V,E] that ids choose from, and what a node reads instead of both: some rows, and indices into them.

    kind: its element type. count: V. wraps: whether negative ids count from the end.
    """

    data: DeferredData
    kind: int
    count: int
    ids: str
    rows: str
    numbers: str
    wraps: bool

    def choose(self, ids: Array) -> dict[str, Array]:
        """The rows and the indices; an id outside of the table becomes an index outside of the rows."""
        flat = np.asarray(ids, _INT64).reshape(-1)
        flat = np.where(flat < 0, flat + self.count, flat) if self.wraps else flat
        is_row = (flat >= 0) & (flat < self.count)
        rows = np.union1d(flat[is_row], [0]).astype(_INT64)
        numbers = np.where(is_row, np.searchsorted(rows, flat), len(rows)).reshape(np.shape(ids))
        assert self.data.rows is not None
        return {self.rows: self.data.rows(rows), self.numbers: numbers.astype(np.asarray(ids).dtype)}


@dataclass
class _Part:
    """Nodes of a model, and the session that runs them.

    reads: the inputs and results of earlier parts that they need. weights: the weights that are read for them.
    makes: the results that later parts or the outputs need.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    tables: list[_Table] = field(default_factory=list)
    reads: tuple[str, ...] = ()
    weights: tuple[TensorProto, ...] = ()
    makes: tuple[str, ...] = ()
    session: Any = None

    def needs(self) -> set[str]:
        """The tensors that have to be there before it runs."""
        return {*self.reads, *(table.ids for table in self.tables)}


def can_be_staged(proto: ModelProto) -> bool:
    """Whether no node holds a graph, which may read anything."""
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return not any(item.type in kinds for node in proto.graph.node for item in node.attribute)


class StagedSession:
    """Runs as onnxruntime's session does.

    Args:
        model: its nodes stand in the order in which they compute, and `can_be_staged`.
        open_part: makes a session of the message of a part.

    Attributes:
        keeps: whether weights are read once for all runs, as they are few.
    """

    def __init__(self, model: Model, open_part: Callable[[ModelProto], Any]) -> None:
        self._model = model
        graph = model.proto.graph
        self._inputs = fed_inputs(model.proto)
        self._outputs = [item.name for item in graph.output]
        weights = {tensor.name: tensor for tensor in graph.initializer if tensor in model.weights}
        parts = _divide(model, weights)
        _wire(parts, graph, weights)
        self._parts = [part for part in parts if part.makes]  # onnxruntime refuses to run without an output
        types = _types(model.proto)
        for part in self._parts:
            part.session = open_part(_message(part, model.proto, types))
        read = {tensor.name: model.weights.size_of(tensor) or 0 for part in self._parts for tensor in part.weights}
        self.keeps = sum(read.values()) <= KEPT_BYTES
        self._arrays: dict[str, Array] = {}

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self._parts)

    def get_inputs(self) -> Sequence[ValueInfoProto]:
        """The inputs that a run has to be given."""
        return self._inputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None) -> list[Any]:
        """Runs as InferenceSession.run does."""
        all_names = list(self._outputs if names is None else names)
        values = dict(self.each(all_names, feeds, options))
        return [values[name] for name in all_names]

    def each(self, names: Sequence[str], feeds: Mapping[str, Any], options: Any = None) -> Iterator[tuple[str, Any]]:
        """The results with their names, each as soon as its part has run: none has to be kept until the others come."""
        values = dict(feeds)
        yield from ((name, values[name]) for name in dict.fromkeys(names) if name in values)
        last = {name: at for at, part in enumerate(self._parts) for name in part.needs()}
        for at, part in enumerate(self._parts):
            part_feeds = {name: values[name] for name in part.reads}
            arrays = part.session.run(list(part.makes), {**part_feeds, **self._read(part, values)}, options)
            results = dict(zip(part.makes, arrays, strict=True))
            yield from ((name, value) for name, value in results.items() if name in names)
            values = {name: value for name, value in (values | results).items() if last.get(name, 0) > at}

    def _read(self, part: _Part, values: Mapping[str, Array]) -> dict[str, Array]:
        """The weights of a part, on all cores, and the rows of its tables."""
        result = {name: array for table in part.tables for name, array in table.choose(values[table.ids]).items()}
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            arrays = pool.map(self._array, part.weights)
            return result | {tensor.name: array for tensor, array in zip(part.weights, arrays, strict=True)}

    def _array(self, tensor: TensorProto) -> Array:
        if not self.keeps:
            return self._model.array(tensor)
        if tensor.name not in self._arrays:
            self._arrays[tensor.name] = self._model.array(tensor)
        return self._arrays[tensor.name]


def _divide(model: Model, weights: Mapping[str, TensorProto]) -> list[_Part]:
    """The nodes in parts whose weights are as large as PART_BYTES and PARTS allow."""
    parts, there, results = [_Part()], dict[str, int](), set[str]()
    total = sum(model.weights.size_of(tensor) or 0 for tensor in weights.values())
    most = min(PART_BYTES, max(LEAST_PART_BYTES, total // PARTS))
    for source in _as_early_as_possible(model.proto.graph.node, weights):
        node, table = _with_rows(model, weights, source)
        sizes = {name: model.weights.size_of(weights[name]) or 0 for name in node.input if name in weights}
        is_full = sum((there | sizes).values()) > most and not sizes.keys() <= there.keys()
        if parts[-1].nodes and (is_full or (table is not None and table.ids in results)):
            parts.append(_Part())
            there, results = {}, set()
        parts[-1].nodes.append(node)
        parts[-1].tables += [] if table is None else [table]
        there |= sizes
        results |= set(node.output)
    return parts


def _as_early_as_possible(nodes: Sequence[NodeProto], weights: Mapping[str, TensorProto]) -> list[NodeProto]:
    """The nodes, those without weights right after what they read, so that fewer results wait for later parts."""
    indices, makers = list[int](), dict[str, int]()
    for at, node in enumerate(nodes):
        read = [makers[name] for name in node.input if name in makers]
        is_bound = not read or any(name in weights for name in node.input)
        indices.append(at if is_bound else max(read))
        makers |= dict.fromkeys((name for name in node.output if name), indices[-1])
    return [nodes[at] for at in sorted(range(len(nodes)), key=lambda at: (indices[at], at))]


def _with_rows(model: Model, weights: Mapping[str, TensorProto], node: NodeProto) -> tuple[NodeProto, _Table | None]:
    """A node that reads only the chosen rows of a table, and that table; the node itself where it has no table."""
    candidates = ((at, model.weights.held_for(weights[name])) for at, name in enumerate(node.input) if name in weights)
    index, table = next(((at, item) for at, item in candidates if isinstance(item, DeferredData)), (0, None))
    is_first_axis = not any(item.name == "axis" and item.i for item in node.attribute)
    if table is None or table.rows is None or node.op_type not in _IDS or not is_first_axis:
        return node, None
    result, ids = copy_message(node), _IDS[node.op_type]
    result.input[index], result.input[ids] = f"{node.output[0]}.rows", f"{node.output[0]}.numbers"
    tensor, wraps = weights[node.input[index]], node.op_type == "Gather"
    read = result.input[index], result.input[ids]
    return result, _Table(table, tensor.data_type, tensor.dims[0], node.input[ids], *read, wraps)


def _wire(parts: Sequence[_Part], graph: GraphProto, weights: Mapping[str, TensorProto]) -> None:
    """Writes down for every part what it reads and what it makes for others."""
    constants = {tensor.name for tensor in graph.initializer}
    needs = {item.name for item in graph.output}
    for part in reversed(parts):
        results = {name for node in part.nodes for name in node.output if name}
        read = dict.fromkeys(name for node in part.nodes for name in node.input if name)
        feeds = {name for table in part.tables for name in (table.rows, table.numbers)}
        part.makes = tuple(sorted(results & needs))
        part.reads = tuple(name for name in read if name not in results | constants | feeds)
        part.weights = tuple(weights[name] for name in read if name in weights)
        needs |= part.needs()


def _message(part: _Part, proto: ModelProto, types: Mapping[str, int]) -> ModelProto:
    """A part as a model of its own."""
    result = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = result.graph
    graph.name = "part"
    graph.node.extend(part.nodes)
    graph.input.extend(helper.make_tensor_value_info(name, types[name], None) for name in part.reads)
    graph.input.extend(helper.make_tensor_value_info(item.name, item.data_type, item.dims) for item in part.weights)
    for table in part.tables:
        graph.input.append(helper.make_tensor_value_info(table.rows, table.kind, None))
        graph.input.append(helper.make_tensor_value_info(table.numbers, types[table.ids], None))
    graph.output.extend(helper.make_tensor_value_info(name, types[name], None) for name in part.makes)
    read = {name for node in part.nodes for name in node.input}
    feeds = {tensor.name for tensor in part.weights}
    graph.initializer.extend(item for item in proto.graph.initializer if item.name in read and item.name not in feeds)
    return result


def _types(proto: ModelProto) -> dict[str, int]:
    """The element types of all tensors."""
    skeleton = without_initializers(proto)
    del skeleton.graph.value_info[:]  # their types may be those of another precision
    # Outputs without a type are inferred like all other tensors.
    replace_items(skeleton.graph.output, (item for item in skeleton.graph.output if item.type.tensor_type.elem_type))
    there = {item.name for item in skeleton.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in there:
            skeleton.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    graph = onnx.shape_inference.infer_shapes(skeleton).graph
    return {
        item.name: item.type.tensor_type.elem_type
        for items in (graph.value_info, graph.input, graph.output)
        for item in items
    }
