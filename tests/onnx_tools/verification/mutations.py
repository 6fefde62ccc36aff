# SPDX-License-Identifier: Apache-2.0
"""Deliberately wrong models: what a defect of the rewriter could do to a rewritten file, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Change = Callable[[ModelProto, np.random.Generator], str]


class NotApplicableError(Exception):
    """Raised if a model has nothing that a change applies to."""


def _weights(model: ModelProto, rank: int) -> list[TensorProto]:
    return [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) == rank
            and np.prod(t.dims) > 1]  # fmt: skip


def _pick(items: list[Any], rng: np.random.Generator) -> Any:
    if not items:
        raise NotApplicableError
    return items[int(rng.integers(len(items)))]


def _write(tensor: TensorProto, values: Array) -> None:
    tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))


def _column_times(model: ModelProto, rng: np.random.Generator) -> str:
    tensor = _pick(_weights(model, 2), rng)
    values, column = numpy_helper.to_array(tensor).copy(), int(rng.integers(tensor.dims[1]))
    values[:, column] *= -3
    _write(tensor, values)
    return f"column {column} of '{tensor.name}' times -3"


def _row_lost(model: ModelProto, rng: np.random.Generator) -> str:
    tensor = _pick(_weights(model, 2), rng)
    values, row = numpy_helper.to_array(tensor).copy(), int(rng.integers(tensor.dims[0]))
    values[row] = 0
    _write(tensor, values)
    return f"row {row} of '{tensor.name}' is 0"


def _swapped_weights(model: ModelProto, rng: np.random.Generator) -> str:
    first = _pick(_weights(model, 2), rng)
    second = _pick([t for t in _weights(model, 2) if t is not first and list(t.dims) == list(first.dims)], rng)
    a, b = numpy_helper.to_array(first).copy(), numpy_helper.to_array(second).copy()
    _write(first, b)
    _write(second, a)
    return f"'{first.name}' and '{second.name}' are swapped"


def _vector_changed(model: ModelProto, rng: np.random.Generator) -> str:
    tensor = _pick(_weights(model, 1), rng)
    values, kind = numpy_helper.to_array(tensor).copy(), int(rng.integers(3))
    at = int(rng.integers(values.size))
    if kind == 0:
        values[:] = 0
    elif kind == 1:
        values[at] += 0.5
    else:
        values[at] *= -3
    _write(tensor, values)
    return f"'{tensor.name}' {('is 0', f'[{at}] + 0.5', f'[{at}] times -3')[kind]}"


def _special_number(model: ModelProto, rng: np.random.Generator) -> str:
    tensor = _pick(_weights(model, 2), rng)
    values = numpy_helper.to_array(tensor).copy()
    value = _pick([np.nan, np.inf, -np.inf, np.finfo(np.float32).min], rng)
    values[:, int(rng.integers(tensor.dims[1]))] = value
    _write(tensor, values)
    return f"a column of '{tensor.name}' is {value}"


def _shifted_rows(model: ModelProto, rng: np.random.Generator) -> str:
    """Rows of a table move by one, so that positions or ids are off by one."""
    tables = {
        name for node in model.graph.node if node.op_type in ("PadfreeEmbedding", "Gather") for name in node.input
    }
    tensor = _pick([tensor for tensor in _weights(model, 2) if tensor.name in tables], rng)
    _write(tensor, np.roll(numpy_helper.to_array(tensor), 1, axis=0))
    return f"rows of '{tensor.name}' are one further down"


def _swapped_columns(model: ModelProto, rng: np.random.Generator) -> str:
    """Heads, or the parts of a joined projection, in another order."""
    tensor = _pick([tensor for tensor in _weights(model, 2) if tensor.dims[1] % 4 == 0], rng)
    values = numpy_helper.to_array(tensor)
    parts = np.split(values, 4, axis=1)
    _write(tensor, np.concatenate([parts[1], parts[0], parts[2], parts[3]], axis=1))
    return f"quarters 0 and 1 of '{tensor.name}' are swapped"


def _attribute(op_type: str, name: str, change: Callable[[AttributeProto, np.random.Generator], str]) -> Change:
    def run(model: ModelProto, rng: np.random.Generator) -> str:
        results = [a for n in model.graph.node if n.op_type == op_type for a in n.attribute if a.name == name]
        return f"{op_type}'s {name} is {change(_pick(results, rng), rng)}"

    return run


def _half_as_much(attribute: AttributeProto, _: np.random.Generator) -> str:
    attribute.f *= 1.5
    return f"{attribute.f:g}"


def _large(attribute: AttributeProto, _: np.random.Generator) -> str:
    attribute.f = 0.3
    return "0.3"


def _other_mode(attribute: AttributeProto, rng: np.random.Generator) -> str:
    attribute.s = _pick([mode for mode in (b"first", b"last", b"mean", b"max") if mode != attribute.s], rng)
    return attribute.s.decode()


def _swapped_inputs(model: ModelProto, rng: np.random.Generator) -> str:
    """The operands of a subtraction or division are swapped."""
    readers = [node for node in model.graph.node if node.op_type in ("Sub", "Div")]
    nodes = [node for node in readers if node.input[0] != node.input[1]]
    types = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    node = _pick([node for node in nodes if not {node.input[0], node.input[1]} & types.keys()], rng)
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return f"operands of {node.op_type} '{node.name}' are swapped"


def _left_out(model: ModelProto, rng: np.random.Generator) -> str:
    """A bias, a scale or an activation is lost."""
    makers = {name for node in model.graph.node for name in node.output}
    weights = {tensor.name for tensor in _weights(model, 1)}
    nodes = []
    for node in model.graph.node:
        items = [name for name in node.input if name in makers]
        if node.op_type in ("Tanh", "Erf", "Sigmoid", "Relu") or (
            node.op_type in ("Add", "Mul") and len(items) == 1 and weights & set(node.input)
        ):
            nodes.append((node, items[0] if items else node.input[0]))
    node, kept = _pick(nodes, rng)
    identity = helper.make_node("Identity", [kept], list(node.output), name=node.name)
    text = f"{node.op_type} '{node.name}' is left out"
    node.CopyFrom(identity)
    return text


CHANGES: dict[str, Change] = {
    "column times": _column_times,
    "row lost": _row_lost,
    "swapped weights": _swapped_weights,
    "vector": _vector_changed,
    "special number": _special_number,
    "shifted rows": _shifted_rows,
    "swapped columns": _swapped_columns,
    "scale": _attribute("PadfreeAttention", "scale", _half_as_much),
    "epsilon": _attribute("PadfreeLayerNorm", "epsilon", _large),
    "pooling": _attribute("PadfreePool", "mode", _other_mode),
    "swapped inputs": _swapped_inputs,
    "left out": _left_out,
}


def mutate(model: ModelProto, rng: np.random.Generator) -> tuple[ModelProto, str]:
    """A copy with one change, and a description of the change."""
    while True:
        changed = ModelProto()
        changed.CopyFrom(model)
        name = _pick(list(CHANGES), rng)
        try:
            return changed, CHANGES[name](changed, rng)
        except NotApplicableError:
            continue
