# SPDX-License-Identifier: Apache-2.0
"""A model as the rewriter hands it on: its message, with what others do to parts of one, and its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from .data_sizes import raw_bytes
from .deferred_data import Array
from .weights import LARGE_BYTES, Weights, array_of
from .wire import message_head

Piece = bytes | memoryview
MessageT = TypeVar("MessageT", bound=Message)
HolderT = TypeVar("HolderT", bound=GraphProto | FunctionProto)


@dataclass(frozen=True, eq=False)
class Model:
    """A message, and the data of the weights that it does not hold.

    Whatever changes a model makes another one, with weights of its own; the data of those that stay the same is shared.
    """

    proto: ModelProto
    weights: Weights = field(default_factory=Weights)

    @classmethod
    def of(cls, proto: ModelProto) -> Model:
        """A copy of a message, whose large weights lie outside of it."""
        result = cls(without_initializers(proto))
        for tensor in proto.graph.initializer:
            if tensor.HasField("raw_data") and raw_bytes(tensor) >= LARGE_BYTES:
                result.weights.hold(add_stub(result.proto.graph, tensor), memoryview(tensor.raw_data))
            else:
                result.proto.graph.initializer.append(tensor)
        return result

    def whole(self) -> ModelProto:
        """A copy of the message with all weights in it."""
        result = without_initializers(self.proto)
        for tensor in self.proto.graph.initializer:
            data = self.weights.data_of(tensor)
            if data is None:
                result.graph.initializer.append(tensor)
            else:  # protobuf appends messages through their bytes, which end at 2 GB
                add_stub(result.graph, tensor).raw_data = bytes(data)
        return result

    def with_proto(self, proto: ModelProto) -> Model:
        """The model of another message, with the same weights."""
        return replace(self, proto=proto)

    def add_weight(self, name: str, values: Array) -> None:
        """Adds an initializer with the values of an array, outside of the message where it is large."""
        tensor = self.proto.graph.initializer.add(name=name)
        if values.nbytes >= LARGE_BYTES:
            self.weights.hold_array(tensor, values)
        else:
            tensor.CopyFrom(numpy_helper.from_array(values, name))

    def array(self, tensor: TensorProto) -> Array:
        """The values of one of the initializers; not to be written to."""
        return array_of(tensor, self.weights.data_of(tensor))


def without_initializers(model: ModelProto) -> ModelProto:
    """A copy of the message without its weights, which are most of it."""
    result = ModelProto()
    _copy_fields(model, result, "graph")
    _copy_fields(model.graph, result.graph, "initializer")
    return result


def bytes_in_pieces(model: Model, *, consume: bool = False) -> tuple[int, Iterator[Piece]]:
    """How many bytes a model takes, and these bytes, the weights one by one.

    The length of all stands in front of them, so each weight in the message is serialised twice: in this way they are
    never held all at once. With `consume` the model lets each weight go once the next piece is asked for.
    """
    proto = model.proto
    skeleton = without_initializers(proto)
    graph = skeleton.graph.SerializeToString()
    skeleton.ClearField("graph")
    sizes = [_tensor_size(tensor, model.weights) for tensor in proto.graph.initializer]
    heads = [message_head(GraphProto.INITIALIZER_FIELD_NUMBER, size) for size in sizes]
    total = sum(sizes) + sum(map(len, heads))
    begin = skeleton.SerializeToString() + message_head(ModelProto.GRAPH_FIELD_NUMBER, len(graph) + total) + graph

    def pieces() -> Iterator[Piece]:
        yield begin
        for head, tensor in zip(heads, proto.graph.initializer, strict=True):
            yield head
            yield from _tensor_pieces(tensor, model.weights)
            if consume:
                model.weights.release(tensor)

    return len(begin) + total, pieces()


def _tensor_pieces(tensor: TensorProto, weights: Weights) -> Iterator[Piece]:
    """The bytes of a tensor's message, with the data that it holds or that is held for it."""
    data = weights.data_of(tensor)
    if data is None:
        yield tensor.SerializeToString()
        return
    yield _head_of_data(tensor, len(data))
    yield data


def _tensor_size(tensor: TensorProto, weights: Weights) -> int:
    """The length of these bytes; deferred data is not read for it."""
    size = weights.size_of(tensor)
    return len(tensor.SerializeToString()) if size is None else len(_head_of_data(tensor, size)) + size


def _head_of_data(tensor: TensorProto, size: int) -> bytes:
    """The bytes before a tensor's data in its message."""
    stub = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return bytes(stub.SerializeToString() + message_head(TensorProto.RAW_DATA_FIELD_NUMBER, size))


def add_stub(graph: GraphProto, tensor: TensorProto) -> TensorProto:
    """An initializer with a tensor's name, type and shape alone, added to the graph."""
    result: TensorProto = graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return result


def _copy_fields(source: Message, target: Message, without: str) -> None:
    """Copies all fields of a message but one."""
    for field_descriptor, value in source.ListFields():
        if field_descriptor.name != without:
            if hasattr(value, "MergeFrom"):  # a message, or a list
                getattr(target, field_descriptor.name).MergeFrom(value)
            else:
                setattr(target, field_descriptor.name, value)


def copy_message(message: MessageT) -> MessageT:
    """A copy of a message."""
    result: MessageT = type(message)()
    result.CopyFrom(message)
    return result


def replace_items(container: Any, items: Iterable[Any]) -> None:
    """Replaces the items of a message's list, which may be among the new ones."""
    new = list(items)
    del container[:]
    container.extend(new)


def fed_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """The inputs of a model that have no initializer; old files list weights among the inputs."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in initializers]


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs that a node holds."""
    graphs: list[GraphProto] = []
    for attribute in node.attribute:
        graphs += attribute.graphs
        if attribute.HasField("g"):
            graphs.append(attribute.g)
    return graphs


def all_nodes(*holders: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """The nodes of graphs and functions, those of subgraphs right after the node that holds them."""
    for holder in holders:
        for node in holder.node:
            yield node
            yield from all_nodes(*subgraphs(node))


def all_graphs(*holders: HolderT) -> Iterator[HolderT | GraphProto]:
    """Graphs and functions, and the graphs that their nodes hold, each before those inside of it."""
    for holder in holders:
        yield holder
        for node in holder.node:
            yield from all_graphs(*subgraphs(node))


def names_read(node: NodeProto) -> set[str]:
    """The names that a node reads, and those that its subgraphs may read from the graph around it."""
    inner_graphs = subgraphs(node)
    names = {*node.input, *(name for inner in all_nodes(*inner_graphs) for name in inner.input)}
    return names | {value.name for graph in all_graphs(*inner_graphs) for value in graph.output}
