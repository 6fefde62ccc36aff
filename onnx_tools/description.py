# SPDX-License-Identifier: Apache-2.0
"""The metadata of a rewritten model: what one has to know to build or run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto
from padfree.contract.names import FORMAT, PER_SEQUENCE

from .analysis import dims_of_shape, dtype_name, first_width, holds_entry, limit_of
from .errors import RewriteError
from .files import definition_entry, fixed_entry, text_entry
from .importing import token_inputs_of
from .importing.fixed_axes import fixed_sizes
from .importing.fixed_axes.sizes import EXPORT_AGAIN
from .notes import unread_inputs_of
from .passes import PREFIX
from .pipeline import PassedGraph
from .report import CoverageReport

VERSION = "0.1.0"


def describe(
    result: PassedGraph,
    report: CoverageReport,
    original: ModelProto,
    *,
    interface: str,
    precision: str,
    masks: str,
) -> dict[str, Any]:
    """The metadata of a result, except for what conversion and verification add; the keywords are those of `rewrite`.

    Raises RewriteError where no slot of the original can be padding.
    """
    graph, analysis = result.graph, result.analysis
    inputs = [_input(graph, tensor, interface, result) for tensor in graph.inputs]
    limits = {item["name"]: item["limit"] for item in inputs}
    return {
        "format": FORMAT,
        "version": VERSION,
        "interface": interface,
        "precision": precision,
        "inputs": inputs,
        "outputs": [
            {
                "name": tensor.name,
                "layout": report.outputs[tensor.name],
                "dtype": str(analysis[tensor].dtype),
                "dims": dims_of_shape(analysis[tensor].shape),
                "original_dims": dims,
            }
            for tensor, dims in zip(graph.outputs, result.original_dims, strict=True)
        ],
        "mask": _mask(result, limits.get(result.mask.source)),
        "max_positions": _longest(result, original),
        "hidden_size": first_width(analysis, graph),
        "num_layers": report.plugins.get("PadfreeAttention", 0),
        "coverage": report.to_dict(),
        "plugins": dict(report.plugins),
        "masks": masks,
        "origins": dict(result.origins),
        **({"unread": list(unread_inputs_of(result))} if unread_inputs_of(result) else {}),
        **({"fixed": fixed_entry(original)} if fixed_entry(original) else {}),
        **text_entry(original),
        **definition_entry(original),
    }


def describe_types(metadata: Mapping[str, Any], graph: gs.Graph) -> None:
    """Writes types and fixed sizes of the result's outputs into its metadata."""
    tensors = {tensor.name: tensor for tensor in graph.outputs}
    for output in metadata["outputs"]:
        tensor = tensors[output["name"]]
        output["dtype"] = dtype_name(tensor.dtype)
        output["shape"] = [size if isinstance(size, int) and size else None for size in tensor.shape or ()]


def measurement(errors: Mapping[str, float], allowance: float) -> dict[str, Any]:
    """Errors by output, relative to a column's root mean square, and the largest allowed one, as in the metadata."""
    return {"errors": {name: float(f"{error:.3g}") for name, error in errors.items()}, "allowed": allowance}


def _longest(result: PassedGraph, original: ModelProto) -> int | None:
    """The longest sequence's length that tables and fixed sizes allow; None where any is allowed."""
    sizes = fixed_sizes(original, token_inputs_of(original))
    if result.mask.source is None and sizes.sequence is not None:
        raise RewriteError(
            f"the model has no mask, and its inputs have the fixed size {sizes}: every sequence has {sizes.sequence} "
            f"tokens, and nothing is padding; {EXPORT_AGAIN}, or with an attention_mask"
        )
    limits = [sizes.sequence, result.traits.longest]
    return min((limit for limit in limits if limit is not None), default=None)


def _mask(result: PassedGraph, limit: int | None) -> dict[str, Any] | None:
    """The metadata's entry for the original's mask, or for its input of lengths where it has that instead."""
    entry = result.mask.describe(limit)
    if entry is None or result.lengths is None:
        return entry
    return {**entry, "input": result.lengths.input, "lengths": True}


def _input(graph: gs.Graph, tensor: gs.Tensor, interface: str, result: PassedGraph) -> dict[str, Any]:
    role, sizes = "tokens", list(tensor.shape)
    is_shared = tensor.name in result.shared_inputs
    if interface == "packed" and tensor.name in ("seq_lens", "max_seqlen"):
        role = tensor.name
    elif interface == "packed" and tensor.name == PREFIX and sizes == ["F"]:
        role = PREFIX
    elif result.lengths is not None and tensor.name == result.lengths.input:
        role = "seq_lens"
    elif sizes[: 1 if interface == "packed" else 2] not in (["T"], ["B", "S"]):
        role = PER_SEQUENCE
    elif interface == "padded" and tensor.name == result.mask.source and result.mask.plain:
        role = "mask"
    elif tensor.name in result.unread_inputs:
        role = "unread"
    has_values = role in ("tokens", PER_SEQUENCE, "unread")
    limit = limit_of(graph, tensor.name) if has_values else None
    entry = {"name": tensor.name, "role": role, "limit": limit, "dtype": np.dtype(tensor.dtype).name}
    if is_shared:
        entry |= {"shared": True}
        trailing = list(result.shared_inputs[tensor.name])
    elif role == "seq_lens":
        trailing = sizes[1:]
    else:
        trailing = sizes[2 if interface == "padded" and role != PER_SEQUENCE else 1 :] if has_values else []
    entry |= holds_entry(result.traits.held_inputs, tensor.name) if role == "tokens" else {}
    return {**entry, "width": int(trailing[0])} if trailing else entry
