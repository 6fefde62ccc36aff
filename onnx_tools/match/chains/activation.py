# SPDX-License-Identifier: Apache-2.0
"""Recognises the activation of a tensor by computing it: how an exporter wrote it down does not matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from ...analysis import is_number, is_output, is_standard, node_name
from ...analysis.symbolic import Analysis
from ...files import own_values
from .. import NoMatch

Values = npt.NDArray[np.float64]

MAX_NODES = 16  # the longest way to write an activation among the tested models has 11
_POINTS: Values = np.linspace(-12.0, 12.0, 4801)
_ROUNDOFF: Mapping[str, float] = MappingProxyType({"float32": 2.0**-16, "float16": 2.0**-11, "bfloat16": 2.0**-8})


def _sigmoid(x: Values) -> Values:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Values) -> Values:
    gate: Values = _erf(x / math.sqrt(2))
    return 0.5 * x * (1 + gate)


def _gelu_tanh(x: Values) -> Values:
    gate: Values = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + gate)


def _relu(x: Values) -> Values:
    return np.maximum(x, 0)


_VALUES_BY_KIND: Mapping[str, Values] = MappingProxyType(
    {
        "gelu": _gelu(_POINTS),
        "gelu_tanh": _gelu_tanh(_POINTS),
        "relu": _relu(_POINTS),
        "sigmoid": _sigmoid(_POINTS),
        "silu": _POINTS * _sigmoid(_POINTS),
    }
)

_ARITHMETIC: Mapping[str, Callable[..., Values]] = MappingProxyType(
    {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "Pow": np.power,
        "Neg": np.negative,
        "Cast": lambda x: x,
        "Identity": lambda x: x,
    }
)

_FUNCTIONS: Mapping[str, Callable[..., Values]] = MappingProxyType(
    {
        "Erf": _erf,
        "Exp": np.exp,
        "Max": np.maximum,
        "Relu": _relu,
        "Sigmoid": _sigmoid,
        "Tanh": np.tanh,
    }
)


@dataclass(frozen=True)
class Activation:
    """`output` is the activation `kind` of a tensor, and only `nodes` read what lies between the two."""

    kind: str
    output: gs.Tensor
    nodes: tuple[gs.Node, ...]


def find_activation(graph: gs.Graph, analysis: Analysis, x: gs.Tensor, *, any_type: bool = False) -> Activation | None:
    """The activation of x that all of its readers compute, in the type of x, or with `any_type` in any float type.

    Nodes that compute a function of x element by element, with numbers as their only other operands, are followed.
    Their results for 4801 values of x are compared with those of the known activations. They may differ by the roundoff
    of x's type, since the constants of a half precision graph are rounded; the nearest is taken. Returns None where x
    goes into no such function. Raises NoMatch where it goes into one that is not known.
    """
    dtype = analysis[x].dtype or ""
    if dtype not in _ROUNDOFF:
        return None
    values, nodes = {x.name: _POINTS}, list[gs.Node]()
    bent: gs.Node | None = None
    for _ in range(MAX_NODES):
        node = _next(x, nodes, values)
        if node is None:
            break
        nodes.append(node)
        with np.errstate(all="ignore"):
            result = _compute(node, values)
        values[node.outputs[0].name] = result
        if is_standard(node, "Gelu", *_FUNCTIONS):
            bent = bent or node
        kind = _nearest(result, _ROUNDOFF[dtype])
        result_type = analysis[node.outputs[0]].dtype
        if (
            kind is not None
            and (result_type == dtype or (any_type and result_type in _ROUNDOFF))
            and _is_closed(graph, x, nodes)
        ):
            return Activation(kind, node.outputs[0], tuple(nodes))
    if bent is not None:
        raise NoMatch(
            f"'{node_name(bent)}' ({bent.op}) does not lead to one of {', '.join(_VALUES_BY_KIND)} in {dtype} alone"
        )
    return None


def _next(x: gs.Tensor, nodes: list[gs.Node], values: Mapping[str, Values]) -> gs.Node | None:
    """A node that reads only numbers and what has been computed already; None where there is none."""
    for tensor in (x, *(node.outputs[0] for node in nodes)):
        for reader in tensor.outputs:
            if any(reader is node for node in nodes) or len(reader.outputs) != 1:
                continue
            belongs = is_standard(reader, "Gelu", *_FUNCTIONS, *_ARITHMETIC)
            if belongs and all(item.name in values or is_number(item) for item in reader.inputs):
                return reader
    return None


def _number(constant: gs.Constant) -> Values:
    """The one element of a constant, read from the tensor that it was imported from, so that its type is kept."""
    return own_values(constant).astype(np.float64).reshape(())


def _compute(node: gs.Node, values: Mapping[str, Values]) -> Values:
    inputs = [_number(item) if isinstance(item, gs.Constant) else values[item.name] for item in node.inputs]
    if node.op == "Gelu":
        return _gelu_tanh(inputs[0]) if node.attrs.get("approximate") == "tanh" else _gelu(inputs[0])
    function = _FUNCTIONS.get(node.op) or _ARITHMETIC[node.op]
    return np.asarray(function(*inputs), np.float64)


def _nearest(result: Values, roundoff: float) -> str | None:
    if result.shape != _POINTS.shape or not np.all(np.isfinite(result)):
        return None
    scale = np.maximum(np.abs(_POINTS), 1.0)
    errors = {kind: float(np.max(np.abs(result - values) / scale)) for kind, values in _VALUES_BY_KIND.items()}
    kind = min(errors, key=lambda name: errors[name])
    return kind if errors[kind] <= roundoff else None


def _is_closed(graph: gs.Graph, x: gs.Tensor, nodes: list[gs.Node]) -> bool:
    """Whether only these nodes read x and what lies between it and the last node's result."""
    inside = [x, *(node.outputs[0] for node in nodes[:-1])]
    return not any(
        is_output(graph, tensor) or any(all(reader is not node for node in nodes) for reader in tensor.outputs)
        for tensor in inside
    )
