# SPDX-License-Identifier: Apache-2.0
"""Runs the runners in Polygraphy's Comparator and measures every output against the reference."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from padfree.contract.names import PER_SEQUENCE
from padfree.onnx_tools.verification import Scale, measure
from padfree.runtime import Array
from polygraphy.comparator import Comparator, IterationResult, RunResults
from polygraphy.logger import G_LOGGER

from ..errors import BuildError
from .batches import LEFT, ComparedBatch
from .metrics import OutputErrors, output_errors
from .original import Original
from .runners import ValidTokenRunner
from .subject import Subject
from .tolerances import Tolerance


@dataclass(frozen=True)
class Outcome:
    """One runner against the reference.

    passed: whether every output of every batch is within the tolerance.
    errors: one entry an output. scales: what each output's numbers are measured by.
    wanted, found: output name -> valid rows, an array a batch; for finding causes.
    run_ms: time of each batch, host included.
    """

    passed: bool
    errors: tuple[OutputErrors, ...]
    scales: Mapping[str, Scale]
    batches: tuple[ComparedBatch, ...]
    expected: Mapping[str, list[Array]]
    actual: Mapping[str, list[Array]]
    run_ms: tuple[float, ...]


def is_within(
    original: Original,
    batch: ComparedBatch,
    reference: IterationResult,
    other: IterationResult,
    scales: Mapping[str, Scale],
    tolerance: Tolerance,
) -> bool:
    """Whether every output of one batch that can be compared is within the tolerance.

    Polygraphy's Comparator.compare_accuracy would ask this, too, but computes means, quantiles and histograms of every
    output for its log first.
    """
    for name, scale in scales.items():
        if is_compared(original, name, batch) and reference[name].size:
            errors = errors_of(original, name, [batch], [reference[name]], [other[name]], scale)
            if not errors.total.within(tolerance):
                return False
    return True


def is_compared(original: Original, output: str, batch: ComparedBatch) -> bool:
    """Whether a batch says something about an output.

    Under left padding, heads that read the first slot read padding in the original: outputs with one row per sequence
    are not compared there, unless the original expects it.
    """
    return original.layouts[output] != PER_SEQUENCE or batch.kind != LEFT or original.is_left_padded


def scale_of(arrays: Sequence[Array]) -> Scale:
    """What valid rows [R, ...] of all batches are measured by."""
    return measure([array.reshape(len(array), math.prod(array.shape[1:])) for array in arrays])


def errors_of(
    original: Original,
    output: str,
    batches: Sequence[ComparedBatch],
    expected: Sequence[Array],
    actual: Sequence[Array],
    scale: Scale,
) -> OutputErrors:
    """The errors of one of the original's outputs; the arguments are output_errors'."""
    return output_errors(output, batches, expected, actual, scale, original.dims[output] or ())


def compare_runners(
    original: Original, reference: ValidTokenRunner, subjects: Sequence[Subject], batches: Sequence[ComparedBatch]
) -> list[Outcome]:
    """Runs all runners on all batches whose masks they take, and compares their outputs with the reference's.

    Raises:
        BuildError: a runner lacks an output, or its shapes are others than the original's.
    """
    ran: dict[str, list[tuple[ComparedBatch, IterationResult, IterationResult]]] = {c.runner.name: [] for c in subjects}
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        for kinds in (True, False):
            chosen_batches = [batch for batch in batches if batch.is_usual(original) is kinds]
            runners = [item.runner for item in subjects if kinds or item.any_mask]
            if not chosen_batches or not runners:
                continue
            feeds = [OrderedDict(batch.feeds) for batch in chosen_batches]
            results: RunResults = Comparator.run([reference, *runners], data_loader=feeds)
            for runner in runners:
                ran[runner.name] += zip(chosen_batches, results[reference.name], results[runner.name], strict=True)
        return [_outcome(original, item, ran[item.runner.name]) for item in subjects]


def _outcome(
    original: Original,
    subject: Subject,
    ran: Sequence[tuple[ComparedBatch, IterationResult, IterationResult]],
) -> Outcome:
    name = subject.runner.name
    expected: dict[str, list[Array]] = {output: [] for output in original.layouts}
    actual: dict[str, list[Array]] = {output: [] for output in original.layouts}
    for batch, a, b in ran:
        for output in original.layouts:
            if output not in b:
                raise BuildError(f"{name} has no output '{output}'; compare a model with the one that it was made from")
            if a[output].shape != b[output].shape:
                raise BuildError(
                    f"{name}: output '{output}' has shape {list(b[output].shape)} on the batch '{batch.name}', the "
                    f"original {list(a[output].shape)} (valid rows); compare a model with the one that it was made from"
                )
            rows = slice(None) if is_compared(original, output, batch) else slice(0)
            expected[output].append(a[output][rows])
            actual[output].append(b[output][rows])
    batches = [batch for batch, _, _ in ran]
    scales = {output: scale_of(arrays) for output, arrays in expected.items()}
    is_within_all = all(is_within(original, batch, a, b, scales, subject.tolerance) for batch, a, b in ran)
    errors = tuple(
        errors_of(original, out, batches, expected[out], actual[out], scales[out]) for out in original.layouts
    )
    times = tuple(1000 * float(b.runtime or 0.0) for _, _, b in ran)
    return Outcome(is_within_all, errors, scales, tuple(batches), expected, actual, times)
