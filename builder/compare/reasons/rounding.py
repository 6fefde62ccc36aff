# SPDX-License-Identifier: Apache-2.0
"""What a quantised original's rounding of activations does to its answers; rewritten models do not round them."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import BuildError
from ..batches import ComparedBatch
from ..candidates import padded_runner
from ..original import Original
from ..outcomes import compare_runners
from ..runners import ValidTokenRunner
from ..subject import Subject
from ..tolerances import TOLERANCES

NAME = "the original as it rounds"


def find_rounding(original: Original, reference: ValidTokenRunner, batches: Sequence[ComparedBatch]) -> tuple[str, ...]:
    """A sentence with how far the file as it is lies from the reference; none for models that are not quantised."""
    rounding = original.rounding
    if rounding is None:
        return ()
    what = (
        f"the original rounds {rounding.activations} activations to {' and '.join(rounding.types)}; rewritten models "
        "do not, and are compared with the same file without that"
    )
    runner = padded_runner(original, NAME, rounding.path)
    try:
        (outcome,) = compare_runners(original, reference, [Subject(runner, "fp32", True, TOLERANCES["fp32"])], batches)
    except BuildError as error:
        return (f"{what}; as it is, it does not run here: {error}",)
    lost_count = sum(item.not_finite for item in outcome.errors)
    if lost_count:
        return (f"{what}; as it is, it gives {lost_count} numbers that are infinite or not a number",)
    worst = max(item.total.relative for item in outcome.errors)
    cosine = min(item.total.cosine for item in outcome.errors)
    return (f"{what}; as it is, it is up to {worst:.2g} relative off, with a smallest cosine of {cosine:.6f}",)
