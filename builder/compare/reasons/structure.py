# SPDX-License-Identifier: Apache-2.0
"""What was changed in a rewritten file: it is compared with what the original is rewritten to now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, numpy_helper
from padfree.onnx_tools import RewriteError, load_model, rewrite, without_functions
from padfree.runtime import Metadata

MAX_NAMED = 3  # changes of a kind that are named one by one


def find_changes(original: ModelProto, path: Path, metadata: Metadata) -> tuple[str, ...] | None:
    """Weights, attributes and connections of a rewritten file that are not what rewriting the original gives.

    None where this version of padfree does not rewrite the original; nothing is found where it gives other names than
    the version that wrote the file.
    """
    was_sampled = bool(metadata.raw.get("kept_float32"))  # verifying takes the sample data that chose those
    try:
        expected = rewrite(
            original,
            interface=metadata.interface,
            precision=metadata.precision,
            verify=was_sampled,
            mask=metadata.mask.input if "mask" in metadata.raw else None,
        ).model
    except RewriteError:
        return None
    a, b = without_functions(expected), without_functions(load_model(path))
    return (*_first(_weights(a, b), "weights"), *_first(_nodes(a, b), "nodes"))


def _first(differences: Iterator[str], what: str) -> list[str]:
    lines = list(differences)
    rest = len(lines) - MAX_NAMED
    return lines if rest <= 0 else [*lines[:MAX_NAMED], f"and {rest} more {what}"]


def _weights(expected: ModelProto, actual: ModelProto) -> Iterator[str]:
    before = {tensor.name: tensor for tensor in expected.graph.initializer}
    for tensor in actual.graph.initializer:
        source = before.get(tensor.name)
        if source is None or (source.raw_data == tensor.raw_data and source.dims == tensor.dims):
            continue
        a, b = (np.asarray(numpy_helper.to_array(item)) for item in (source, tensor))
        if a.shape != b.shape:
            yield f"weight '{tensor.name}' is changed: shape {list(b.shape)} instead of {list(a.shape)}"
        elif not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            wide = a.astype(np.float64), b.astype(np.float64)
            number = int((wide[0] != wide[1]).sum())
            largest = float(np.abs(wide[0] - wide[1]).max())
            yield f"weight '{tensor.name}' is changed: {number} of {a.size} numbers, by up to {largest:.3g}"


def _nodes(expected: ModelProto, actual: ModelProto) -> Iterator[str]:
    before = {_name(node): node for node in expected.graph.node}
    after = {_name(node): node for node in actual.graph.node}
    for name, node in after.items():
        source = before.get(name)
        if source is None:
            yield f"{node.op_type} '{name}' is not in what the original is rewritten to"
            continue
        if list(node.input) != list(source.input):
            changed = [f"'{b}' for '{a}'" for a, b in zip(source.input, node.input, strict=False) if a != b]
            yield f"{node.op_type} '{name}' reads {', '.join(changed) or 'other inputs'}"
        yield from _attributes(source, node, name)
    for name in before.keys() - after.keys():
        yield f"{before[name].op_type} '{name}' is missing"


def _attributes(source: NodeProto, node: NodeProto, name: str) -> Iterator[str]:
    values = [{item.name: item for item in each.attribute} for each in (source, node)]
    for key in sorted(values[0].keys() | values[1].keys()):
        a, b = (side.get(key) for side in values)
        if a != b:
            yield f"attribute {key} of {node.op_type} '{name}' is {_attribute_text(b)}, should be {_attribute_text(a)}"


def _attribute_text(attribute: onnx.AttributeProto | None) -> str:
    if attribute is None:
        return "absent"
    value = onnx.helper.get_attribute_value(attribute)
    return f"{value:g}" if isinstance(value, float) else str(value)[:80]


def _name(node: NodeProto) -> str:
    return str(node.name or (node.output[0] if node.output else node.op_type))
