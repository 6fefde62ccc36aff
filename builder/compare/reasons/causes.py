# SPDX-License-Identifier: Apache-2.0
"""Why a model differs: hypotheses that are tried on its outputs and, where that does not tell, by running it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from padfree.runtime import Array, bounds_of
from polygraphy.logger import G_LOGGER

from ..batches import PREFIX, ComparedBatch, with_mask
from ..original import Original
from ..outcomes import Outcome, is_compared, scale_of
from ..runners import ValidTokenRunner
from ..subject import Subject

OutputArrays = Mapping[str, Array]

TRIED_SEQUENCES = 3
LEFT_OVER = 0.25  # of the largest error, at most: what a cause has to explain is the rest
POSITION_SHIFTS = (1, 2)  # RoBERTa's offset is 2: both a lost offset's twin and an off-by-one are seen


def find_causes(original: Original, reference: ValidTokenRunner, subject: Subject, outcome: Outcome) -> tuple[str, ...]:
    """What explains an outcome that did not pass, most telling first; empty where no known cause does."""
    causes = [*_not_finite(outcome), *_moved_outputs(original, subject, outcome)]
    if causes:
        return tuple(causes)
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL), reference, subject.runner:
        return tuple(_by_running(original, reference, subject, outcome))


def _not_finite(outcome: Outcome) -> Iterator[str]:
    for item in outcome.errors:
        if item.not_finite:
            yield (
                f"output '{item.output}' holds {item.not_finite} numbers that are infinite or not a number where the "
                "original's are finite: something overflows; --bisect finds where"
            )


def _moved_outputs(original: Original, subject: Subject, outcome: Outcome) -> Iterator[str]:
    """Right numbers in the wrong place: under another output's name, at the next token, or for another request."""
    for item in outcome.errors:
        if item.total.within(subject.tolerance):
            continue
        actual = outcome.actual[item.output]
        for other, expected in outcome.expected.items():
            if other != item.output and _agree(outcome, subject, expected, actual):
                yield f"outputs are swapped: '{item.output}' holds what the original gives for '{other}'"
        if not original.has_token_rows(item.output):
            continue
        for shift in (1, -1):
            pairs = zip(outcome.expected[item.output], actual, outcome.batches, strict=True)
            cut = [(_shift(a, batch, -shift), _shift(b, batch, shift)) for a, b, batch in pairs]
            if any(len(a) for a, _ in cut) and _agree(outcome, subject, [a for a, _ in cut], [b for _, b in cut]):
                side = "next" if shift == 1 else "previous"
                yield f"rows are shifted: '{item.output}' has every token's row at the {side} token"


def _shift(rows: Array, batch: ComparedBatch, shift: int) -> Array:
    """The rows without each sequence's first (shift 1) or last (shift -1)."""
    parts = np.split(rows, bounds_of(batch.seq_lens)[1:-1])
    return np.concatenate([part[shift:] if shift > 0 else part[:shift] for part in parts]) if len(rows) else rows


def _by_running(original: Original, reference: ValidTokenRunner, subject: Subject, outcome: Outcome) -> Iterator[str]:
    """Runs single sequences of the worst batch, alone and with other inputs for the original."""
    batch, requests = _worst_requests(outcome)
    alone = [batch.part(at, original) for at in requests]
    actual = [subject.runner.infer(dict(item.feeds)) for item in alone]
    has_many = original.has_mask and batch.mask.size > batch.mask[:1].sum()
    if has_many and _matches(original, reference, subject, outcome, alone, actual):
        what = "padding is read" if subject.any_mask else "sequences see each other"
        yield (
            f"the mask is dropped, {what}: sequences that are run alone, without padding, agree with the original, "
            f"and differ in the batch '{batch.name}'"
        )
        return
    for shift in POSITION_SHIFTS if original.has_mask else ():
        changed = [_left_padded(item, original, shift) for item in alone]
        fits = all(_fits(original, item) for item in changed)
        if fits and _matches(original, reference, subject, outcome, changed, actual):
            yield (
                f"positions are shifted by {shift}: the original gives these numbers where every sequence starts "
                f"{shift} position{'s' if shift > 1 else ''} later"
            )
            return
    for token_input in (*original.tokens[1:], *original.rows):
        changed = [
            replace(item, feeds={**item.feeds, token_input.name: np.zeros_like(item.feeds[token_input.name])})
            for item in alone
        ]
        if _matches(original, reference, subject, outcome, changed, actual):
            yield f"input '{token_input.name}' is not read: the original gives these numbers where it is all zeros"


def _worst_requests(outcome: Outcome) -> tuple[ComparedBatch, list[int]]:
    """A right-padded batch (what its sequences are without padding is clear) and the sequences in it to try alone."""
    batches_by_name = {item.name: item for item in outcome.batches if item.kind == PREFIX}
    batches = batches_by_name or {item.name: item for item in outcome.batches}
    rows = sorted((row for item in outcome.errors for row in item.worst), key=lambda row: -row.relative)
    worst = next((row for row in rows if row.batch in batches), None)
    most_padded = max(batches.values(), key=lambda item: int((~item.mask).sum()))
    batch = most_padded if worst is None else batches[worst.batch]
    by_length = [int(at) for at in np.argsort(-batch.seq_lens, kind="stable") if batch.seq_lens[at]]
    return batch, list(dict.fromkeys([*([] if worst is None else [worst.request]), *by_length]))[:TRIED_SEQUENCES]


def _fits(original: Original, batch: ComparedBatch) -> bool:
    positions = original.metadata.max_positions
    return positions is None or batch.mask.shape[1] <= positions


def _left_padded(batch: ComparedBatch, original: Original, slots: int) -> ComparedBatch:
    """A batch with masked slots before the first one."""
    feeds = {item.name: np.pad(batch.feeds[item.name], ((0, 0), (slots, 0))) for item in original.tokens}
    feeds |= {item.name: batch.feeds[item.name] for item in original.rows}
    return with_mask(batch.name, feeds, np.pad(batch.mask, ((0, 0), (slots, 0))), original)


def _matches(
    original: Original,
    reference: ValidTokenRunner,
    subject: Subject,
    outcome: Outcome,
    batches: Sequence[ComparedBatch],
    actual: Sequence[OutputArrays],
) -> bool:
    """Whether the original gives, on these batches, what was found."""
    expected = [reference.infer(dict(batch.feeds)) for batch in batches]
    names = [name for name in original.layouts if all(is_compared(original, name, batch) for batch in batches)]
    return bool(names) and all(
        _agree(outcome, subject, [item[name] for item in expected], [item[name] for item in actual]) for name in names
    )


def _agree(outcome: Outcome, subject: Subject, expected: Sequence[Array], actual: Sequence[Array]) -> bool:
    if [item.shape for item in expected] != [item.shape for item in actual]:
        return False
    scale = scale_of(expected)
    pairs = [(a.reshape(len(a), -1), b.reshape(len(b), -1)) for a, b in zip(expected, actual, strict=True) if a.size]
    largest = [float(scale.differences(a, b).max()) for a, b in pairs]
    tolerance = min(subject.tolerance.absolute, LEFT_OVER * max(item.total.absolute for item in outcome.errors))
    return bool(largest) and max(largest) <= tolerance
