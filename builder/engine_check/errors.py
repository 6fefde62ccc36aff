# SPDX-License-Identifier: Apache-2.0
"""How far an engine's answers may be from onnxruntime's: beyond it a kernel is broken, whatever the precision loses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from padfree.contract.metadata import Metadata
from padfree.onnx_tools.analysis import Dims, dims_of, fits, packed_rows, padded_dims, token_numbers
from padfree.onnx_tools.verification import Scale, measure, typical_row_error
from padfree.runtime import Array

from ..compare.metrics import output_errors
from .batches import MIXED, CheckedBatch

MANY_COLUMNS = 16
"""The fewest numbers per row for which a sequence's cosine means something: of a single number it is the sign."""


@dataclass(frozen=True)
class Bound:
    """What is refused, by compare's Tolerance: a row's `relative` error above it, a sequence's `cosine` below it.

    Attributes:
        equal: the fraction of integers that must be the same; a class may change if two scores are nearly equal.
        typical: the largest error of a batch's median row; None: not known.
    """

    relative: float
    cosine: float
    equal: float
    typical: float | None = None


# In fp32, ten times the largest error of correct engines of 457 models on an H200. In half precision, rewriting has
# measured what rounding costs this very model, as the worst column's error; in checks of all families, the worst row
# was off by at most 7 times that. Where that is little, three times compare's tolerance is allowed. A row that a kernel
# left out, wrote elsewhere or computed with another one's operand has a relative error of 0.7 to 1.4, and what a wrong
# weight or scale does to all rows shows in the cosine. fp8 is compared with its own e4m3 numbers; where a last bit
# differs, the next GEMM rounds to another one: 0.9983 was the smallest cosine on an H200.
BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        "fp32": Bound(relative=3e-3, cosine=0.9999, equal=0.98),
        "fp16": Bound(relative=0.06, cosine=0.995, equal=0.8),
        "bf16": Bound(relative=0.25, cosine=0.95, equal=0.5),
        "fp8": Bound(relative=0.6, cosine=0.95, equal=0.5),
        "int8": Bound(relative=0.6, cosine=0.95, equal=0.5),
    }
)
ROUNDING = 12.0
"""Times the measured cost of rounding."""
UNMEASURED_FACTOR = 2.5
"""Times the usual bound, where nothing was measured."""
MOST_RELATIVE = 0.8
"""Whatever rounding costs."""
TYPICAL: Mapping[str, float] = MappingProxyType({"fp16": 8.0, "bf16": 3.0})
"""Times the measured cost of rounding in the median row.

An engine in bf16 rounds where onnxruntime was made to, or less often, and sums in float32: the median of BERT's rows is
the same within a sixth whether norms are folded or not, and where one GEMM of 12 layers is off by a fifth it is four
times as large. TensorRT may also sum in fp16, and a fifth is 40 times what fp16 costs.
"""
OTHER_LENGTH = 2.0
"""Times that for batches whose lengths differ from the measured ones."""
LEAST_TYPICAL: Mapping[str, float] = MappingProxyType({"fp16": 6e-3, "bf16": 1.6e-2})
"""For models that lose next to nothing: a few roundings of the numbers themselves."""
SOME_ROWS = 4
"""Fewer rows have no median."""


@dataclass(frozen=True)
class OutputCheck:
    """The errors of one output over all batches.

    relative: the worst row's. absolute: the worst number's, in parts of its column's root mean square. cosine: the
        smallest of any sequence. Of integers, which have none of these, `equal` is the part that is the same.
    bound: what is allowed. batch: where the worst row is. problem: why it is refused, empty where it is not.
    """

    output: str
    bound: Bound
    relative: float | None = None
    absolute: float | None = None
    cosine: float | None = None
    equal: float | None = None
    batch: str = ""
    problem: str = ""


def bound_of(metadata: Metadata, output: str) -> Bound:
    """What is allowed in an output: by what GEMMs compute in, or by the type of results where that is coarser."""
    rounded = {"float16": "fp16", "bfloat16": "bf16"}
    kinds = [rounded[item.dtype] for item in metadata.outputs if item.dtype in rounded]
    kind = kinds[0] if kinds and metadata.precision == "fp32" else metadata.arithmetic
    bound = BOUNDS[kind]
    if kind not in rounded.values() or metadata.precision == "fp32":
        return bound
    errors_by_output = metadata.raw.get("verification", {}).get("half_precision", {}).get("errors", {}).get(output)
    relative = (
        UNMEASURED_FACTOR * bound.relative
        if errors_by_output is None
        else max(bound.relative, ROUNDING * errors_by_output)
    )
    usual = metadata.raw.get("verification", {}).get("half_precision", {}).get("typical", {}).get(output)
    typical = None if usual is None else float(f"{max(LEAST_TYPICAL[kind], TYPICAL[kind] * usual):.2g}")
    return replace(bound, relative=float(f"{min(MOST_RELATIVE, relative):.2g}"), typical=typical)


def token_rows(array: Array, output: Mapping[str, Any], batch: CheckedBatch, *, is_packed: bool) -> Array | None:
    """The numbers of tokens and sequences in an output, [R, C]; None where the array has other sizes.

    Args:
        array: as the model gives it.
        output: its entry in the metadata.
        batch: what was run.
        is_packed: whether the model takes packed tokens.
    """
    dims = dims_of(output)
    if is_packed and dims and dims[0] == "T":
        return packed_rows(array, batch.mask).values if len(array) >= batch.mask.sum() else None
    return token_numbers(array, dims, batch.mask).values if fits(array.shape, dims, batch.mask) else None


def check_output(
    output: Mapping[str, Any],
    batches: Sequence[CheckedBatch],
    expected: Sequence[Array],
    actual: Sequence[Array],
    bound: Bound,
) -> OutputCheck:
    """Compares one output over all batches.

    Args:
        output: its entry in the metadata.
        batches: what was run.
        expected: onnxruntime's numbers of each batch, [R, C].
        actual: the engine's, of the same shapes.
        bound: what is allowed.
    """
    name = str(output["name"])
    if all(array.dtype.kind in "iub" for array in expected):
        return _check_integers(name, batches, expected, actual, bound)
    rows = [array.astype(np.float64) for array in expected]
    dims: Dims = padded_dims(output) or ()
    scale = measure(rows)
    errors = output_errors(name, batches, rows, actual, scale, dims)
    total, worst = errors.total, errors.worst[0] if errors.worst else None
    where = worst.batch if worst is not None else batches[0].name
    problem = ""
    if errors.not_finite:
        problem = f"{errors.not_finite} numbers that are infinite or not a number"
    elif not total.relative <= bound.relative:
        at_position = "" if worst is None else f" in sequence {worst.request}" + _position(worst.position)
        problem = f"a relative error of {total.relative:.2g}{at_position}, allowed is {bound.relative:g}"
    elif rows[0].shape[1] >= MANY_COLUMNS and (beyond := _beyond_typical(batches, rows, actual, scale, bound)):
        where, problem = beyond
    elif rows[0].shape[1] >= MANY_COLUMNS and not total.sequence_cosine >= bound.cosine:
        problem = f"a sequence with a cosine of {total.sequence_cosine:.4f}, allowed is {bound.cosine:g} or more"
    return OutputCheck(name, bound, total.relative, total.absolute, total.sequence_cosine, None, where, problem)


def _beyond_typical(
    batches: Sequence[CheckedBatch], expected: Sequence[Array], actual: Sequence[Array], scale: Scale, bound: Bound
) -> tuple[str, str] | None:
    """The batch whose median row is off by more than rounding costs, and that in words; None where there is none."""
    for batch, a, b in zip(batches, expected, actual, strict=True):
        if bound.typical is None or len(a) < SOME_ROWS:
            continue
        is_long = int(batch.seq_lens.max(initial=0)) > MIXED
        error, tolerance = typical_row_error(a, b, scale), bound.typical * (OTHER_LENGTH if is_long else 1)
        if not error <= tolerance:
            return batch.name, f"a relative error of {error:.2g} in half of its rows, allowed is {tolerance:.2g}"
    return None


def _position(position: int | None) -> str:
    return "" if position is None else f", position {position}"


def _check_integers(
    name: str, batches: Sequence[CheckedBatch], expected: Sequence[Array], actual: Sequence[Array], bound: Bound
) -> OutputCheck:
    same = [np.asarray(a == b) for a, b in zip(expected, actual, strict=True)]
    equal = float(np.concatenate([item.reshape(-1) for item in same]).mean())
    worst = min(range(len(same)), key=lambda at: same[at].mean() if same[at].size else math.inf)
    problem = (
        "" if equal >= bound.equal else f"{equal:.0%} of its integers right, allowed are {bound.equal:.0%} or more"
    )
    return OutputCheck(name, bound, equal=equal, batch=batches[worst].name, problem=problem)
