# SPDX-License-Identifier: Apache-2.0
"""An operator's expected outputs, by its body in onnxruntime in float32, and how far results are off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper
from padfree.contract.names import EIGHT_BITS, FP8, INT8
from padfree.onnx_tools.files import Array, Model, open_session
from padfree.onnx_tools.operators import OPERATORS, node_attributes, padfree_nodes, with_functions
from padfree.onnx_tools.precision import widen, with_rounding

from .graphs import CaseGraph

# Inputs are the same numbers on both sides, and sums are float32 on both: what differs is the order of sums, weights of
# attention that are rounded before they multiply, and the rounding of results to 11 and 8 bits (half a unit: 5e-4 and
# 4e-3 at most). These are ten times that, and a tenth of what a wrong row, column or factor gives. In e4m3 two numbers
# that differ in their last bit now and then round to neighbours, which are 6 to 12 % apart.
LARGEST_ERRORS: Mapping[str, float] = MappingProxyType(
    {"fp32": 1e-4, "fp16": 5e-3, "bf16": 4e-2, FP8: 6e-2, INT8: 2e-2, "int32": 0.0}
)
_ACT_BYTES = MappingProxyType({"fp32": 4, "fp16": 2, "bf16": 2, FP8: 2, INT8: 2})
_TYPE_BYTES = MappingProxyType({"int32": 4, "float32": 4, "fp8": 1, "int8": 1})


@dataclass(frozen=True)
class ReferenceResults:
    """Expected outputs by name, and the bytes that the checked operators read and write, each once."""

    outputs: Mapping[str, Array]
    moved_bytes: int


def reference_results(graph: CaseGraph, model: onnx.ModelProto) -> ReferenceResults:
    """Runs a graph's bodies in onnxruntime; before 8 bits round it again, every half precision tensor is rounded."""
    if graph.kind in EIGHT_BITS:
        runs = with_rounding(Model(model), graph.precision)
    else:
        wide = widen(Model(model))
        runs = wide.with_proto(with_functions(wide.proto))
    names = [item.name for item in graph.outputs]
    widths, weights = _widths(graph, model), {tensor.name for tensor in model.graph.initializer}
    more = onnx.ModelProto()
    more.CopyFrom(runs.proto)
    known_names = {*names, *graph.feeds, *weights}
    more.graph.output.extend(
        helper.make_value_info(name, onnx.TypeProto()) for name in widths if name not in known_names
    )
    output_names = [value.name for value in more.graph.output]
    expected = dict(zip(output_names, open_session(runs.with_proto(more)).run(output_names, graph.feeds), strict=True))
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    sizes |= {name: int(values.size) for name, values in {**graph.feeds, **expected}.items()}
    bytes_moved = sum(sizes[name] * width for name, width in widths.items())
    return ReferenceResults({name: np.asarray(expected[name]) for name in names}, bytes_moved)


def _widths(graph: CaseGraph, model: onnx.ModelProto) -> dict[str, int]:
    """Bytes per number of every tensor that the checked operators read or write."""
    widths: dict[str, int] = {}
    for node in padfree_nodes(model.graph):
        if node.name not in graph.checked_nodes:
            continue
        spec, attributes = OPERATORS[node.op_type], node_attributes(node)
        for names, items in ((node.input, spec.inputs_for(attributes)), (node.output, spec.outputs_for(attributes))):
            for name, item in zip(names, items, strict=True):
                widths[name] = _TYPE_BYTES.get(item.type, _ACT_BYTES.get(graph.kind, 4))
    return widths


@dataclass(frozen=True)
class Difference:
    """How far results are off. relative: the worst row's; of whole numbers the part that is wrong."""

    relative: float
    problem: str = ""


def difference(graph: CaseGraph, expected: Mapping[str, Array], actual: Mapping[str, Array]) -> Difference:
    """Compares all outputs; filler is left out. A row is measured by its own length, or a usual row's if that is more.

    Args:
        graph: what was run.
        expected: output name -> array.
        actual: the same of the GPU.
    """
    worst, total = 0.0, sum(graph.lengths)
    for item in graph.outputs:
        a, b = (np.asarray(side[item.name]) for side in (expected, actual))
        if a.shape != b.shape:
            return Difference(math.inf, f"shape {list(b.shape)}, expected is {list(a.shape)}")
        if item.tokens is not None:
            a, b = (np.moveaxis(side, item.tokens, 0)[:total] for side in (a, b))
        if a.dtype.kind in "iu":
            wrong = int((a != b).sum())
            if wrong:
                return Difference(wrong / a.size, f"{wrong} of {a.size} whole numbers are wrong")
            continue
        rows = [side.astype(np.float64).reshape(-1, a.shape[-1]) for side in (a, b)]
        if not np.isfinite(rows[1]).all():
            return Difference(math.inf, f"{int((~np.isfinite(rows[1])).sum())} numbers are infinite or not a number")
        lengths = np.linalg.norm(rows[0], axis=1)
        usual = float(np.sqrt(np.mean(np.square(lengths)))) or 1.0
        worst = max(worst, float((np.linalg.norm(rows[1] - rows[0], axis=1) / np.maximum(lengths, usual)).max()))
    largest_error = LARGEST_ERRORS[graph.kind]
    return Difference(
        worst, "" if worst <= largest_error else f"a row is off by {worst:.2g}, allowed is {largest_error:g}"
    )
