# SPDX-License-Identifier: Apache-2.0
"""Which lengths the sequences of a batch have, where a report or a measurement needs some."""

from __future__ import annotations

import math
from dataclasses import dataclass

from padfree.onnx_tools import Lengths

from .engine.profile import DEFAULT_MAX_BATCH, DEFAULT_MAX_SEQ_LEN, TYPICAL_FILL
from .errors import BuildError


@dataclass(frozen=True)
class LengthOptions:
    """What a command calls its options, for messages."""

    longest: str = "--max-length"
    mean: str = "--mean-length"


def check_lengths(batch: int | None, mean: float | None, maximum: int | None) -> None:
    """Refuses lengths that no model takes, before one is read.

    Raises:
        BuildError: as choose_lengths.
    """
    if maximum is None and mean is not None:
        maximum = max(DEFAULT_MAX_SEQ_LEN, math.ceil(mean)) if math.isfinite(mean) else None
    choose_lengths(None, batch, mean, maximum)


def choose_lengths(
    limit: int | None,
    batch: int | None,
    mean: float | None,
    maximum: int | None,
    options: LengthOptions = LengthOptions(),
    *,
    cut: int | None = None,
) -> Lengths:
    """Lengths with defaults for what is None: the model's limit or 512, 0.6 of it on average, 32 sequences.

    `cut` is where a folder has texts cut: where that is below the limit, no sequence is longer unless one is asked for.

    Raises:
        BuildError: the lengths contradict each other or the model; the message says which option to pass.
    """
    usual = min((length for length in (limit, cut) if length), default=DEFAULT_MAX_SEQ_LEN)
    longest = usual if maximum is None else maximum
    if longest < 1 or (limit is not None and longest > limit):
        allowed_text = "1 or more" if limit is None else f"1..{limit}, what the model takes"
        advice = f"pass {options.longest} {limit or DEFAULT_MAX_SEQ_LEN}"
        raise BuildError(f"longest sequence {longest}, allowed: {allowed_text}; {advice}")
    average = TYPICAL_FILL * longest if mean is None else mean
    if not 0 < average <= longest:
        raise BuildError(
            f"mean length {average:g}, allowed: above 0 and at most the longest sequence, {longest}; pass "
            f"{options.mean} {TYPICAL_FILL * longest:g}"
        )
    sequences = DEFAULT_MAX_BATCH if batch is None else batch
    if sequences < 1:
        raise BuildError(f"batch of {sequences} sequences, allowed: 1 or more; pass --batch {DEFAULT_MAX_BATCH}")
    return Lengths(sequences, float(average), longest)
