# SPDX-License-Identifier: Apache-2.0
"""What one run takes, and how a queue of sequences is cut into runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from padfree.runtime.errors import SessionError


@dataclass(frozen=True)
class Budget:
    """What one run takes; None is no limit.

    Attributes:
        max_tokens: most tokens.
        max_sequences: most sequences.
        counts_padding: tokens are those of a batch padded to its longest sequence: sequences x longest.
    """

    max_tokens: int | None = None
    max_sequences: int | None = None
    counts_padding: bool = False

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_sequences"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SessionError(f"{name} is {value}, allowed: 1 or more, or None for no limit; take the profile's")

    def takes(self, sequences: int, tokens: int, longest: int) -> bool:
        """Whether a run of that many sequences and tokens, padding not counted, fits."""
        if self.max_sequences is not None and sequences > self.max_sequences:
            return False
        token_count = sequences * longest if self.counts_padding else tokens
        return self.max_tokens is None or token_count <= self.max_tokens


def cut(lengths: Iterable[int], budget: Budget) -> Iterator[slice]:
    """Cuts a queue, in order, into runs that each fit the budget; every run takes as many sequences as it can.

    Args:
        lengths: tokens of each sequence, 0 or more.
        budget: what a run takes. A sequence beyond `max_tokens` gets a run of its own: whoever cannot run it at all
            refuses it before.

    Yields:
        Slices of the queue that follow each other and cover it; none for an empty queue.
    """
    queue = list(lengths)
    if queue and budget.takes(len(queue), sum(queue), max(queue)):
        yield slice(0, len(queue))
        return
    start = stop = tokens = longest = 0
    for stop, length in enumerate(queue, start=1):
        tokens += length
        longest = max(longest, length)
        if stop - start > 1 and not budget.takes(stop - start, tokens, longest):
            yield slice(start, stop - 1)
            start, tokens, longest = stop - 1, length, length
    if stop > start:
        yield slice(start, stop)
