# SPDX-License-Identifier: Apache-2.0
"""Sequences that come together: what all of them begin with, and the parts that they are queued in."""

from __future__ import annotations

from dataclasses import replace

from padfree.contract.metadata import Metadata
from padfree.runtime.request import RaggedBatch

from ..budget import Budget, cut
from ..prefixes import shared_beginning
from .waiting import Beginning

GROUP_TOKENS, GROUP_SEQUENCES = 4096, 32
"""The most of a group: small enough to share a run with those of other clients."""
MOST_GROUPS = 1 << 16
"""In the queue of a server; the limit that counts is that of tokens."""


def group_budget(run: Budget) -> Budget:
    """The most of a request that stays together, and of small ones that become one group, by what a run takes."""
    tokens, sequences = (
        ours if theirs is None else min(ours, theirs)
        for ours, theirs in ((GROUP_TOKENS, run.max_tokens), (GROUP_SEQUENCES, run.max_sequences))
    )
    return Budget(tokens, sequences, run.counts_padding)


def beginning_of(ragged: RaggedBatch, metadata: Metadata) -> Beginning | None:
    """What all sequences begin with, where the model computes that once in a run."""
    length = shared_beginning(ragged, metadata)
    if not length:
        return None
    return Beginning(b"".join(row[:length].tobytes() for row in ragged.tokens.values()), length)


def parts_of(ragged: RaggedBatch, part: Budget, beginning: Beginning | None) -> list[RaggedBatch]:
    """The parts, of as many sequences as one takes; what they begin with is one more sequence of each, if that fits."""
    lengths = ragged.seq_lens
    if beginning is not None and part.takes(2, beginning.length + 1, 0):
        lengths = lengths - beginning.length
        part = replace(
            part,
            max_tokens=None if part.max_tokens is None else part.max_tokens - beginning.length,
            max_sequences=None if part.max_sequences is None else part.max_sequences - 1,
        )
    return ragged.parts(list(cut(lengths.tolist(), part)))
