# SPDX-License-Identifier: Apache-2.0
"""Chooses the GEMMs of a graph that can be in 8 bits and were asked for."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from ..analysis import find_padfree, is_padfree, is_standard, node_name, padfree_inputs
from ..errors import RewriteError
from ..match.chains import is_of_first_tokens
from .options import QuantizationOptions

HALF_OPERATOR = "PadfreeLinear"
_MULTIPLE, _GATED_MULTIPLE = 16, 32
"""K and N of GEMMs in 8 bits are multiples of it: rows start at multiples of 16 bytes."""
_NAMES_SHOWN = 6
_NOT_ASKED_FOR = "not asked for"


@dataclass(frozen=True)
class Layer:
    """A GEMM of a graph: its name, that of the tensor that it multiplies, and its node."""

    name: str
    x: str
    node: gs.Node


@dataclass(frozen=True)
class Layers:
    """GEMMs that are to be in 8 bits, and the reasons of the others by their names."""

    chosen_layers: tuple[Layer, ...]
    kept_layers: Mapping[str, str]


def choose_layers(graph: gs.Graph, options: QuantizationOptions) -> Layers:
    """Chooses GEMMs. Raises RewriteError for a pattern that fits no GEMM, and where no GEMM is left."""
    gemms = find_padfree(graph, HALF_OPERATOR)
    names = [node_name(node) for node in gemms]
    if not gemms:
        raise RewriteError(
            "the model has no GEMM of tokens that padfree's kernels compute, so that nothing can be in "
            f"{options.number_format.precision}; "
            "see the near misses of the pass 'linear' (padfree inspect), or choose precision fp16"
        )
    for pattern in (*options.keep, *options.quantize):
        if not fnmatch.filter(names, pattern):
            raise RewriteError(f"no GEMM is named '{pattern}', the GEMMs are {_list(names)}; correct it")
    reasons = dict[str, str]()
    for name, node in zip(names, gemms, strict=True):
        if reason := _reason(name, node, options):
            reasons[name] = reason
    chosen_layers = tuple(
        Layer(name, padfree_inputs(node)["x"].name, node)
        for name, node in zip(names, gemms, strict=True)
        if name not in reasons
    )
    if not chosen_layers:
        reason = next((reason for reason in reasons.values() if reason != _NOT_ASKED_FOR), _NOT_ASKED_FOR)
        raise RewriteError(
            f"no GEMM is left to be in {options.number_format.precision}: {reason}; change --keep and --quantize, or "
            "choose precision fp16"
        )
    return Layers(chosen_layers, reasons)


def sizes(graph: gs.Graph) -> dict[str, int]:
    """How many numbers the weights of GEMMs of tokens have, by the GEMMs' names: multiplications per token."""
    gemms = [node for node in find_padfree(graph, HALF_OPERATOR) if not is_of_first_tokens(node)]
    weights = {node_name(node): padfree_inputs(node)["weight"] for node in gemms}
    return {name: math.prod(weight.shape) for name, weight in weights.items() if isinstance(weight, gs.Constant)}


def folds_norm(layer: Layer) -> bool:
    """Whether a GEMM norms the rows that it multiplies."""
    return bool(layer.node.attrs["has_x_moments"])


def reads_stream(layer: Layer) -> bool:
    """Whether a GEMM norms rows that others add without a norm: a stream, where norms stand ahead of layers."""
    if not folds_norm(layer):
        return False
    rows = layer.node.inputs[0]
    return any(_adds(reader, rows) for reader in rows.outputs)


def _adds(reader: gs.Node, rows: gs.Tensor) -> bool:
    """Whether a node adds rows without a norm, or takes some of them for a node that does."""
    if is_padfree(reader, "PadfreePool"):
        summand = reader.outputs[0]
        return any(_sums(item) or _adds(item, summand) for item in summand.outputs)
    residual = is_padfree(reader, HALF_OPERATOR) and padfree_inputs(reader).get("residual")
    return residual is rows and not reader.attrs["has_residual_moments"]


def _sums(reader: gs.Node) -> bool:
    return is_standard(reader, "Add") or (is_padfree(reader, "PadfreeLayerNorm") and bool(reader.attrs["has_residual"]))


def _reason(name: str, node: gs.Node, options: QuantizationOptions) -> str:
    """Why a GEMM stays in half precision; empty where it need not."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.keep):
        return "asked for"
    if options.quantize and not any(fnmatch.fnmatchcase(name, pattern) for pattern in options.quantize):
        return _NOT_ASKED_FOR
    if is_of_first_tokens(node):
        return "it multiplies only first tokens, which takes too little time to matter"
    weight = padfree_inputs(node)["weight"]
    if not isinstance(weight, gs.Constant):
        return f"its weight '{weight.name}' is computed"
    inputs, outputs = (int(size) for size in weight.shape)
    multiple = _GATED_MULTIPLE if node.attrs["gated"] else _MULTIPLE
    if inputs % _MULTIPLE or outputs % multiple:
        operator = options.number_format.operator
        return f"its weight is [{inputs},{outputs}], {operator} takes multiples of {_MULTIPLE} and {multiple}"
    return ""


def _list(names: Sequence[str]) -> str:
    names_text = ", ".join(f"'{name}'" for name in names[:_NAMES_SHOWN])
    return names_text if len(names) <= _NAMES_SHOWN else f"{names_text} and {len(names) - _NAMES_SHOWN} more"
