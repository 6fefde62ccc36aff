# SPDX-License-Identifier: Apache-2.0
"""Helpers over onnx-graphsurgeon's graph that the analysis and all passes share."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from ..errors import RewriteError
from ..files import NodeBuilder
from ..operators import DOMAIN, DOMAIN_VERSION, OPERATORS, AttributeValue

STANDARD_DOMAINS = (None, "", "ai.onnx")
_BOOLEAN = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or", "Xor"}
)


def is_standard(node: gs.Node, *ops: str) -> bool:
    """Whether the node is one of the standard operators `ops`."""
    return node.op in ops and node.domain in STANDARD_DOMAINS


def is_padfree(node: gs.Node, *ops: str) -> bool:
    """Whether the node is one of the padfree operators `ops`."""
    return node.op in ops and node.domain == DOMAIN


def find_standard(graph: gs.Graph, *ops: str) -> list[gs.Node]:
    """The nodes of a graph that are one of the standard operators `ops`."""
    return [node for node in graph.nodes if is_standard(node, *ops)]


def find_padfree(graph: gs.Graph, *ops: str) -> list[gs.Node]:
    """The nodes of a graph that are one of the padfree operators `ops`."""
    return [node for node in graph.nodes if is_padfree(node, *ops)]


def padfree_inputs(node: gs.Node) -> dict[str, gs.Tensor]:
    """The inputs of a padfree node by the names of its description."""
    names = [spec.name for spec in OPERATORS[node.op].inputs_for(node.attrs)]
    return dict(zip(names, node.inputs, strict=True))


def padfree_outputs(node: gs.Node) -> dict[str, gs.Tensor]:
    """The outputs of a padfree node by the names of its description."""
    names = [spec.name for spec in OPERATORS[node.op].outputs_for(node.attrs)]
    return dict(zip(names, node.outputs, strict=True))


def padfree_attributes(node: gs.Node) -> Mapping[str, AttributeValue]:
    """The attributes of a padfree node, including options of engines that it does not write."""
    return OPERATORS[node.op].complete(node.attrs)


def takes_rows(pool: gs.Node) -> bool:
    """Whether a PadfreePool gives rows as they are: first or last tokens', or the one of each sequence.

    A norm after it is one before it, but for the zeros of empty sequences.
    """
    attributes = padfree_attributes(pool)
    return attributes["mode"] in ("first", "last", "each") and not attributes["normalize"]


def set_padfree_inputs(node: gs.Node, inputs: Mapping[str, gs.Tensor], **attributes: AttributeValue) -> None:
    """Gives a padfree node other attributes, and the inputs that they ask for, by the names of its description."""
    node.attrs.update(attributes)
    node.inputs = [inputs[spec.name] for spec in OPERATORS[node.op].inputs_for(node.attrs)]


def producer(tensor: gs.Tensor) -> gs.Node | None:
    """The node that makes the tensor; None for inputs and constants."""
    return tensor.inputs[0] if tensor.inputs else None


def made_by(tensor: gs.Tensor, *ops: str) -> gs.Node | None:
    """The node that makes the tensor if it is one of the standard operators `ops`."""
    node = producer(tensor)
    return node if node is not None and is_standard(node, *ops) else None


def present(tensors: Sequence[gs.Tensor]) -> list[gs.Tensor]:
    """The tensors that are there: an empty name is an optional input left out."""
    return [tensor for tensor in tensors if tensor.name != ""]


def argument(node: gs.Node, position: int) -> gs.Tensor | None:
    """Input number `position`, or None where it is left out."""
    if position >= len(node.inputs) or node.inputs[position].is_empty():
        return None
    return node.inputs[position]


def opset(graph: gs.Graph) -> int:
    """Version of the standard operators."""
    return int(graph.opset)


def node_name(node: gs.Node) -> str:
    """A name for messages: the node's own, or that of its first output."""
    return str(node.name or (node.outputs[0].name if node.outputs else node.op))


def is_output(graph: gs.Graph, tensor: gs.Tensor) -> bool:
    """Whether the tensor is an output of the graph."""
    return any(tensor is output for output in graph.outputs)


def is_number(tensor: gs.Tensor) -> bool:
    """Whether the tensor is a constant of one element."""
    return isinstance(tensor, gs.Constant) and int(np.prod(tensor.shape, dtype=np.int64)) == 1


def drops_nothing(node: gs.Node) -> bool:
    """Whether a Dropout is in inference mode, where it changes nothing."""
    training = argument(node, 2)
    return training is None or (isinstance(training, gs.Constant) and not np.any(training.values))


def used_once(graph: gs.Graph, tensor: gs.Tensor) -> bool:
    """Whether exactly one node input reads the tensor."""
    reads = sum(1 for node in tensor.outputs for item in node.inputs if item is tensor)
    return not is_output(graph, tensor) and _distinct(tensor.outputs) == 1 and reads == len(tensor.outputs) == 1


def _distinct(nodes: Sequence[gs.Node]) -> int:
    return len({id(node) for node in nodes})


@functools.lru_cache(256)
def dtype_name(dtype: Any) -> str | None:
    """The name in numpy of a numpy or ONNX element type, cached because numpy builds it anew; None if not known."""
    if dtype is None:
        return None
    return str((helper.tensor_dtype_to_np_dtype(dtype) if isinstance(dtype, int) else np.dtype(dtype)).name)


def names_in_use(graph: gs.Graph) -> set[str]:
    """The names of all tensors and nodes."""
    nodes = list(graph.nodes)
    names = {tensor.name for node in nodes for tensor in (*node.inputs, *node.outputs)}
    names.update(node.name for node in nodes)
    names.update(tensor.name for tensor in (*graph.inputs, *graph.outputs))
    return names


class Editor(NodeBuilder[gs.Tensor]):
    """Adds nodes to one graph under names that nothing else uses.

    The type of a new tensor follows from the operator and the types of what it reads. A tensor given as `output` loses
    the node that made it before.
    """

    def __init__(self, graph: gs.Graph) -> None:
        self.graph = graph
        self.opset = opset(graph)
        self._names = names_in_use(graph)
        self._counts: dict[str, int] = {}
        self._stem = ""

    def with_stem(self, stem: str) -> Editor:
        """The same editor, whose new names begin with this stem unless a call gives another."""
        other = copy.copy(self)
        other._stem = stem
        return other

    def fresh(self, stem: str) -> str:
        """A name that no tensor or node has: `stem`, or `stem` and a number."""
        count = self._counts.get(stem, 0)
        name = stem if count == 0 else f"{stem}_{count}"
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._counts[stem] = count + 1
        self._names.add(name)
        return name

    def constant(self, stem: str, values: np.ndarray) -> gs.Constant:
        """A new constant."""
        return gs.Constant(self.fresh(stem), np.asarray(values, order="C"))

    def variable(self, stem: str, dtype: Any = None) -> gs.Variable:
        """A new tensor of the given type."""
        return gs.Variable(self.fresh(stem), dtype=dtype)

    def _constant(self, values: np.ndarray) -> gs.Constant:
        kind = "integers" if values.ndim else "number"
        return self.constant(f"{self._stem}_{kind}" if self._stem else kind, values)

    def _add(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        output: gs.Tensor | None,
        stem: str,
        attributes: Mapping[str, Any],
    ) -> gs.Tensor:
        own = f"{self._stem}_{op.lower()}" if self._stem else str(op if output is None else output.name)
        stem = stem or own
        result = self.variable(stem, _result_type(op, inputs, attributes)) if output is None else self.take_over(output)
        self.graph.nodes.append(gs.Node(op, self.fresh(f"{stem}_node"), dict(attributes), list(inputs), [result]))
        return result

    def padfree(
        self, op: str, inputs: Sequence[gs.Tensor], outputs: Sequence[gs.Tensor], **attributes: AttributeValue
    ) -> gs.Node:
        """Adds a padfree node that makes the outputs; flags not given are 0, and options of engines are not written."""
        spec = OPERATORS[op]
        floats = {item.name for item in spec.attributes if item.type == "float"}
        attrs = {key: float(value) if key in floats else value for key, value in {**spec.flags, **attributes}.items()}
        node = gs.Node(op, self.fresh(op), attrs, list(inputs), [*map(self.take_over, outputs)], domain=DOMAIN)
        self.graph.nodes.append(node)
        return node

    def cast(self, tensor: gs.Tensor, dtype: Any, stem: str = "", output: gs.Tensor | None = None) -> gs.Tensor:
        """The tensor as another element type."""
        return self.op("Cast", tensor, output=output, stem=stem, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def take_over(self, tensor: gs.Tensor) -> gs.Tensor:
        """The tensor without the node that made it, so that another node can make it."""
        tensor.inputs.clear()
        return tensor

    def redirect(self, old: gs.Tensor, new: gs.Tensor) -> None:
        """Makes every reader of `old` read `new`; a graph output keeps its name and becomes a copy of `new`."""
        for node in list(old.outputs):
            for position, item in enumerate(node.inputs):
                if item is old:
                    node.inputs[position] = new
        if is_output(self.graph, old):
            old.inputs.clear()
            self.op("Identity", new, stem=f"{old.name}_output", output=old)


def _result_type(op: str, inputs: Sequence[gs.Tensor], attributes: Mapping[str, Any]) -> Any:
    """The type of the result of a node, for operators that passes add."""
    if op in _BOOLEAN:
        return np.dtype(np.bool_)
    if op in ("Shape", "Size"):
        return np.dtype(np.int64)
    if op == "Cast":
        return helper.tensor_dtype_to_np_dtype(attributes["to"])
    if op == "ConstantOfShape":
        return attributes["value"].dtype
    return inputs[1 if op == "Where" else 0].dtype


def add_domain(graph: gs.Graph) -> None:
    """Declares the padfree operators in the graph's opsets."""
    domains = list(graph.import_domains or [])
    if not any(item.domain == DOMAIN for item in domains):
        graph.import_domains = [*domains, helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]


def inline_constants(graph: gs.Graph) -> None:
    """Turns the outputs of Constant nodes into constants."""
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for node in graph.nodes:
        if not is_standard(node, "Constant") or len(node.attrs) != 1:
            continue
        key, value = next(iter(node.attrs.items()))
        if key == "value":
            values = np.asarray(value.values)
        elif key in types:
            values = np.asarray(value, dtype=types[key])
        else:
            continue
        tensor = node.outputs[0]
        node.outputs.clear()
        tensor.to_constant(values)


def unread_inputs(graph: gs.Graph) -> tuple[str, ...]:
    """The inputs of a tidy graph whose values no output depends on; their sizes may be read."""
    given_out = {id(tensor) for tensor in graph.outputs}
    return tuple(
        str(tensor.name)
        for tensor in graph.inputs
        if id(tensor) not in given_out and all(is_standard(node, "Shape", "Size") for node in tensor.outputs)
    )


def tidy(graph: gs.Graph) -> None:
    """Removes nodes that lead to no output and sorts the rest; inputs, PadfreeIndex and PadfreeSchedule stay."""
    outputs = list(graph.outputs)
    outputs += [node.outputs[0] for node in find_padfree(graph, "PadfreeIndex", "PadfreeSchedule")]
    nodes = sorted_nodes(outputs)
    remaining = {id(node) for node in nodes}
    remove_nodes(graph, [node for node in graph.nodes if id(node) not in remaining])
    graph.nodes = nodes


def remove_nodes(graph: gs.Graph, nodes: Sequence[gs.Node]) -> None:
    """Takes nodes out, detached from their tensors all at once: one by one is compared with a tensor's readers."""
    removed_ids = {id(node) for node in nodes}
    graph.nodes = [node for node in graph.nodes if id(node) not in removed_ids]
    for tensor in {id(tensor): tensor for node in nodes for tensor in node.inputs}.values():
        list.__setitem__(tensor.outputs, slice(None), [node for node in tensor.outputs if id(node) not in removed_ids])
    for tensor in {id(tensor): tensor for node in nodes for tensor in node.outputs}.values():
        list.__setitem__(tensor.inputs, slice(None), [node for node in tensor.inputs if id(node) not in removed_ids])
    for node in nodes:
        list.clear(node.inputs)
        list.clear(node.outputs)


def disconnect(*nodes: gs.Node) -> None:
    """Takes nodes off their tensors; tidying removes them."""
    for node in nodes:
        node.inputs.clear()
        node.outputs.clear()


def replace_node(graph: gs.Graph, node: gs.Node, count: int) -> None:
    """Puts the nodes that were added after the first `count` where a node is, which goes unless it is among them."""
    others, new_nodes = graph.nodes[:count], graph.nodes[count:]
    if all(new is not node for new in new_nodes):
        remove_nodes(graph, [node])
    graph.nodes = [new for other in others for new in (new_nodes if other is node else [other])]


def sorted_nodes(outputs: Sequence[gs.Tensor]) -> list[gs.Node]:
    """The nodes that lead to the tensors, each after those whose results it reads. Raises RewriteError for a cycle."""
    order: list[gs.Node] = []
    state: dict[int, bool] = {}  # False: what the node reads is being sorted; True: done
    stack = [node for tensor in reversed(outputs) for node in tensor.inputs]
    while stack:
        node = stack[-1]
        key = id(node)
        if key in state:
            stack.pop()
            if not state[key]:
                state[key] = True
                order.append(node)
            continue
        state[key] = False
        for tensor in reversed(node.inputs):
            for maker in reversed(tensor.inputs):
                mark = state.get(id(maker))
                if mark is None:
                    stack.append(maker)
                elif not mark:
                    raise RewriteError(f"node '{node_name(node)}' ({node.op}) reads what is made of its own result")
    return order
