# SPDX-License-Identifier: Apache-2.0
"""Packed batches on a CPU: cut into runs of sequences of like lengths, and their results joined.

The operators' bodies compute attention and pooling on a grid of all sequences by the longest one. One long text among
many short ones would make that grid a hundred times as large as the tokens are, in time and in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from padfree.contract.metadata import Metadata
from padfree.contract.names import PER_SEQUENCE, PREFIX

from .rows import Array, bounds_of, ranges

Feeds = Mapping[str, Any]
Run = Callable[[Feeds], dict[str, Array]]

SLOTS_A_RUN = 16384
"""The most slots of a run's grid: sequences times the longest one."""
NUMBERS_A_RUN = 1 << 26
"""The most slots times the width of the widest output, such as a vocabulary: 256 MiB in float32."""
SLOTS_A_TOKEN = 2
"""More slots per token than this are worth another run."""
FEW_SLOTS = 512
"""A grid that is no larger is not worth another run, whatever padding it has."""


def in_groups(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Sequences that run together, by number, the longest first; their grids have `most` slots at most.

    A sequence that is longer has a run of its own.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    groups: list[list[int]] = []
    longest = tokens = 0
    for at in order:
        length = max(1, lengths[at])
        slots = longest * (len(groups[-1]) + 1) if groups else 0
        if not groups or slots > min(most, max(FEW_SLOTS, SLOTS_A_TOKEN * (tokens + length))):
            groups.append([])
            longest, tokens = length, 0
        groups[-1].append(at)
        tokens += length
    return groups


class CpuRuns:
    """Runs a packed model's inputs, as many at once as do not pad much.

    Args:
        metadata: the model's.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        widths = [prod(size for size in item.shape or () if size is not None) for item in metadata.outputs]
        self._most = max(1, min(SLOTS_A_RUN, NUMBERS_A_RUN // max(1, *widths)))
        # Padded outputs are as wide as the longest sequence of the batch: those batches stay whole.
        joins_rows = all(item.layout == "constant" or item.rows_of is not None for item in metadata.outputs)
        self._cuts = metadata.is_packed and joins_rows

    def run(self, feeds: Feeds, run_once: Run) -> dict[str, Array]:
        """What `run_once` gives for the inputs, which it gets whole or in parts."""
        if not self._cuts:
            return run_once(feeds)
        lengths = self._lengths(feeds).tolist()
        longest, tokens = max(lengths, default=0), sum(lengths)
        slots = longest * len(lengths)
        if slots <= min(self._most, max(FEW_SLOTS, SLOTS_A_TOKEN * tokens)):
            return run_once(feeds)
        starts = bounds_of(lengths)
        sizes = {"T": len(feeds[self._metadata.ids_input().name]), "B": len(lengths)}  # with tokens of filler
        results: dict[str, Array] = {}
        for group in in_groups(lengths, self._most):
            members = self._with_prefixes(feeds, group)
            member_lengths = [lengths[one] for one in members]
            at = ranges(starts[members], member_lengths)
            outputs = run_once(self._part(feeds, members, member_lengths, at))
            own = at[: sum(lengths[one] for one in group)]
            self._join(results, outputs, {"T": own, "B": np.asarray(group)}, sizes)
        return results

    def _lengths(self, feeds: Feeds) -> Array:
        for item in self._metadata.inputs:
            if item.role == "cu_seqlens":
                return np.diff(feeds[item.name])
        return np.asarray(next(feeds[item.name] for item in self._metadata.inputs if item.role == "seq_lens"))

    def _with_prefixes(self, feeds: Feeds, group: list[int]) -> list[int]:
        """The sequences of a group, then those that they continue and that are not among them."""
        item = self._metadata.input_of_role(PREFIX)
        if item is None or len(feeds[item.name]) == 1:
            return group
        prefixes = dict.fromkeys(int(feeds[item.name][one]) for one in group)
        return [*group, *(one for one in prefixes if one >= 0 and one not in group)]

    def _part(self, feeds: Feeds, group: list[int], lengths: list[int], at: Array) -> dict[str, Array]:
        """The inputs of some sequences, a `group` of these numbers, whose tokens are `at`."""
        part: dict[str, Array] = {}
        for item in self._metadata.inputs:
            value = feeds[item.name]
            if item.role == "seq_lens":
                part[item.name] = np.asarray(lengths, dtype=value.dtype)
            elif item.role == PER_SEQUENCE:
                part[item.name] = value[group]
            elif item.role == PREFIX:
                numbers = {one: at for at, one in enumerate(group)}
                part[item.name] = value if len(value) == 1 else np.array([numbers.get(one, -1) for one in value[group]])
                part[item.name] = part[item.name].astype(value.dtype)
            elif item.role == "cu_seqlens":
                part[item.name] = bounds_of(lengths).astype(value.dtype)
            elif item.role == "max_seqlen":
                part[item.name] = value[: max(1, *lengths)]
            else:  # a row of filler where no sequence has a token
                part[item.name] = value[at] if len(at) else np.zeros_like(value[:1])
        return part

    def _join(
        self,
        results: dict[str, Array],
        outputs: Mapping[str, Array],
        indices: Mapping[str, Array],
        sizes: Mapping[str, int],
    ) -> None:
        """Puts the rows of a part where they belong; rows of filler are zeros."""
        for item in self._metadata.outputs:
            array, rows = outputs[item.name], item.rows_of
            if rows is None:  # the same for every batch
                results[item.name] = array
                continue
            if item.name not in results:
                results[item.name] = np.zeros((sizes[rows], *array.shape[1:]), dtype=array.dtype)
            results[item.name][indices[rows]] = array[: len(indices[rows])]
