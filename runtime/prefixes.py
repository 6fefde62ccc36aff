# SPDX-License-Identifier: Apache-2.0
"""Sequences of a batch that begin with the same tokens: the longest common prefix becomes a sequence of its own.

Ids are compared, so that nothing depends on where texts end. A sequence continues at most one other, which continues
none, and keeps a token of its own. Nothing outlives a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import Metadata
from padfree.contract.names import PREFIX

from .budget import Budget
from .errors import SessionError
from .request import OutputRows, RaggedBatch, in_order
from .rows import Int32Array, TokenArray, as_int32, bounds_of, ranges

LEAST_PREFIX = 16
"""Tokens of the shortest prefix that is looked for."""
LEAST_SAVED = 64
"""Without a cost table: the fewest tokens that are worth another sequence, and attention over two runs of keys."""
LEAST_PART_SAVED = 1 / 16
"""Without a cost table: the smallest part of a batch's tokens that is worth it; graphs round up by up to 1/32."""


class Costs(Protocol):
    """What a CostTable tells."""

    def mixed_seconds(self, sequences: npt.ArrayLike, tokens: npt.ArrayLike, squares: npt.ArrayLike) -> Any:
        """The cost of packed runs with these numbers of sequences, sums of lengths and sums of squared lengths."""


class Siblings(NamedTuple):
    """Sequences, by number, that begin with the same tokens, and how many these are."""

    members: list[int]
    length: int

    @property
    def savings(self) -> int:
        """Tokens that are computed once instead of by every member."""
        return (len(self.members) - 1) * self.length


@dataclass(frozen=True)
class SharedRun:
    """One run: sequences of the caller, by number, and after them the prefixes that some of them continue.

    Attributes:
        batch: the run's sequences.
        callers: the caller's number of each, except for the prefixes at the end.
        tokens_saved: how many fewer tokens it has than its sequences have.
    """

    batch: RaggedBatch
    callers: list[int]
    tokens_saved: int


def shared_runs(ragged: RaggedBatch, metadata: Metadata, budget: Budget, costs: Costs | None = None) -> list[SharedRun]:
    """The runs of a batch in which tokens are computed once that several sequences begin with; none where none pays."""
    if metadata.input_of_role(PREFIX) is None:
        return []
    families = _paying(ragged, budget, costs)
    if not families:
        return []
    lengths = ragged.seq_lens.tolist()
    starts = bounds_of(lengths).tolist()
    return [_run(ragged, starts, lengths, run) for run in _cut(families, lengths, budget)]


def computed_lengths(ragged: RaggedBatch, metadata: Metadata, budget: Budget) -> npt.NDArray[np.int64]:
    """How many tokens of each sequence a run of all computes; prefixes count to one of their sequences."""
    lengths = ragged.seq_lens.astype(np.int64)
    if metadata.input_of_role(PREFIX) is None:
        return lengths
    for family in _paying(ragged, budget, None):
        lengths[family.members[1:]] -= family.length
    return lengths


def shared_beginning(ragged: RaggedBatch, metadata: Metadata) -> int:
    """How many tokens all sequences begin with that a run computes once; 0: none, or too few to pay."""
    count = ragged.seq_lens.size
    if metadata.input_of_role(PREFIX) is None or count < 2:
        return 0
    most = int(ragged.seq_lens.min()) - 1
    starts = bounds_of(ragged.seq_lens)[:-1]
    for looked_at in (LEAST_PREFIX, most):  # most batches differ early
        if looked_at > most:
            return 0
        at = starts[:, None] + np.arange(looked_at)
        equal = np.all([(row[at] == row[:looked_at]).all(axis=0) for row in ragged.tokens.values()], axis=0)
        length = looked_at if equal.all() else int(equal.argmin())
        if length < LEAST_PREFIX:
            return 0
    return length if _pays(ragged.seq_lens, [Siblings(list(range(count)), length)], None) else 0


def order_of_runs(ragged: RaggedBatch, metadata: Metadata) -> npt.NDArray[np.int64]:
    """An order to cut runs in: the longest first, or those together that begin alike, if they may share that."""
    if metadata.input_of_role(PREFIX) is None:
        return np.argsort(-ragged.seq_lens, kind="stable").astype(np.int64)
    rows = [row.tobytes() for row in ragged.rows()[metadata.ids_input().name]]
    return np.array(sorted(range(len(rows)), key=rows.__getitem__), np.int64)


def read_prefix(prefix: Any, seq_lens: Int32Array, metadata: Metadata) -> Int32Array:
    """Checks a caller's own prefixes: int32 [B], the number of the sequence that each continues, or -1.

    Raises:
        SessionError: a model without them, a number of no other sequence, a prefix of a prefix, or one with which a
            sequence is longer than the model or the engine's profile takes.
    """
    if metadata.input_of_role(PREFIX) is None:
        raise SessionError(
            "the model takes no prefixes; make it with --shared-prefixes, or pass every sequence with all of its tokens"
        )
    numbers, count = as_int32(prefix, PREFIX), seq_lens.size
    if numbers.size != count:
        raise SessionError(f"'{PREFIX}' has {numbers.size} numbers, there are {count} sequences; pass one for each")
    for at, parent in enumerate(numbers.tolist()):
        if parent == -1:
            continue
        if not 0 <= parent < count or parent == at:
            raise SessionError(
                f"'{PREFIX}' is {parent} for sequence {at}, allowed: -1, or the number of another of the {count} "
                "sequences; correct it"
            )
        if numbers[parent] != -1:
            raise SessionError(
                f"sequence {at} continues sequence {parent}, which continues sequence {int(numbers[parent])}; allowed "
                "is one step: pass the prefix as one sequence"
            )
        own, before = int(seq_lens[at]), int(seq_lens[parent])
        if metadata.longest is not None and own + before > metadata.longest:
            raise SessionError(
                f"sequence {at} has {own} tokens after a prefix of {before}, together {own + before}, the model or the "
                f"engine's profile takes {metadata.longest}; shorten the prefix, or build the engine with "
                f"--max-seq-len {own + before}"
            )
    return numbers


def _paying(ragged: RaggedBatch, budget: Budget, costs: Costs | None) -> list[Siblings]:
    """The families that make a batch faster; none where the budget has no room for them."""
    if ragged.seq_lens.size < 2 or budget.max_sequences == 1:
        return []
    families = [family for family in _families(ragged) if _pays(ragged.seq_lens, [family], costs)]
    return families if families and _pays(ragged.seq_lens, families, costs) else []


def _families(ragged: RaggedBatch) -> list[Siblings]:
    """Families that save many tokens; of every sequence, all tokens but the last may be shared."""
    bounds = [(start, max(start, end - 1)) for start, end in pairwise(bounds_of(ragged.seq_lens).tolist())]
    first, *others = ragged.tokens.values()
    begins: dict[bytes, list[int]] = {}
    for at, (start, end) in enumerate(bounds):
        if end - start >= LEAST_PREFIX:
            begins.setdefault(first[start : start + LEAST_PREFIX].tobytes(), []).append(at)
    families = []
    for group in begins.values():
        if len(group) > 1:
            group.sort(key=lambda at: first[bounds[at][0] : bounds[at][1]].tobytes())
            families += _best(group, [first, *others], bounds)
    return families


def _best(group: list[int], columns: list[TokenArray], bounds: Sequence[tuple[int, int]]) -> list[Siblings]:
    """Families of sequences that stand in the order of their ids; together they save the most tokens, or nearly so.

    Sequences that share so many tokens stand together: they are a node of the tree of common prefixes, which a stack
    walks in one pass.
    """
    stack: list[_Node] = []
    for at, number in enumerate(group):
        after = group[at + 1] if at + 1 < len(group) else None
        shared = 0 if after is None else _common(columns, bounds[number], bounds[after])
        node = _Node(shared, [number], [])
        while stack and stack[-1].depth > shared:
            node = stack.pop().join(node).with_family()
        if stack and stack[-1].depth == shared:
            stack[-1] = stack[-1].join(node)
        else:
            stack.append(node._replace(depth=shared))
    return stack[0].families


class _Node(NamedTuple):
    """Sequences that share so many tokens: those that are in no family yet, and the families of the others."""

    depth: int
    loose: list[int]
    families: list[Siblings]

    def join(self, other: _Node) -> _Node:
        return self._replace(loose=self.loose + other.loose, families=self.families + other.families)

    def with_family(self) -> _Node:
        """The node with one more family if that saves more: of loose sequences and of those that save less below."""
        if self.depth < LEAST_PREFIX:
            return self
        staying = [family for family in self.families if family.savings >= len(family.members) * self.depth]
        others = [family for family in self.families if family not in staying]
        members = self.loose + [number for family in others for number in family.members]
        before = sum(family.savings for family in others)
        if (len(members) - 1) * self.depth <= before:
            return self
        return _Node(self.depth, [], [*staying, Siblings(members, self.depth)])


def _common(columns: Sequence[TokenArray], one: tuple[int, int], other: tuple[int, int]) -> int:
    """The number of equal tokens with which two sequences begin."""
    most = min(one[1] - one[0], other[1] - other[0])
    for column in columns:
        differs = column[one[0] : one[0] + most] != column[other[0] : other[0] + most]
        at = int(differs.argmax()) if most else 0
        most = at if most and differs[at] else most
    return most


def _pays(seq_lens: Int32Array, families: Sequence[Siblings], costs: Costs | None) -> bool:
    """Whether a batch is faster when these sequences share their prefixes."""
    lengths = seq_lens.astype(np.int64)
    savings = sum(family.savings for family in families)
    if costs is None:
        return savings >= max(LEAST_SAVED, LEAST_PART_SAVED * int(lengths.sum()))
    squares = int((lengths**2).sum())
    # A member with n tokens after p shared ones takes n^2 + 2 n p of (n + p)^2; its p^2 is computed once per family.
    squares_saved = sum(family.savings * family.length for family in families)
    tokens, count = int(lengths.sum()), lengths.size
    alone, together = costs.mixed_seconds(
        np.array([count, count + len(families)]),
        np.array([tokens, tokens - savings]),
        np.array([squares, squares - squares_saved]),
    ).tolist()
    return bool(together < alone)


class _RunItem(NamedTuple):
    """A sequence by number, and its family; None: it shares nothing."""

    number: int
    family: Siblings | None


def _cut(families: Sequence[Siblings], lengths: Sequence[int], budget: Budget) -> Iterator[list[_RunItem]]:
    """Runs that fit the budget, with families kept together as far as they fit; the rest in the caller's order."""
    shared = {number for family in families for number in family.members}
    members = [_RunItem(number, family) for family in families for number in family.members]
    members += [_RunItem(number, None) for number in range(len(lengths)) if number not in shared]
    run: list[_RunItem] = []
    present: set[int] = set()  # the families of the run, by id
    sequences = tokens = 0
    for member in members:
        is_new = member.family is not None and id(member.family) not in present
        own = lengths[member.number] - (0 if member.family is None or is_new else member.family.length)
        if run and not budget.takes(sequences + 1 + is_new, tokens + own, 0):
            yield run
            run, present, sequences, tokens = [], set(), 0, 0
            is_new, own = member.family is not None, lengths[member.number]
        run.append(member)
        present |= set() if member.family is None else {id(member.family)}
        sequences, tokens = sequences + 1 + is_new, tokens + own
    if run:
        yield run


def _run(ragged: RaggedBatch, starts: Sequence[int], lengths: Sequence[int], members: Sequence[_RunItem]) -> SharedRun:
    """The batch of a run; a family of which one member alone is there is none."""
    counts: dict[int, int] = {}
    for member in members:
        counts[id(member.family)] = counts.get(id(member.family), 0) + 1
    families = {id(item.family): item.family for item in members if item.family and counts[id(item.family)] > 1}
    numbers = {family: len(members) + at for at, family in enumerate(families)}
    pieces, prefix = list[tuple[int, int]](), list[int]()
    for member in members:
        parent = families.get(id(member.family))
        offset = 0 if parent is None else parent.length
        pieces.append((starts[member.number] + offset, lengths[member.number] - offset))
        prefix.append(numbers.get(id(member.family), -1))
    for family in families.values():
        pieces.append((starts[family.members[0]], family.length))
        prefix.append(-1)
    at = ranges(*zip(*pieces, strict=True))
    batch = RaggedBatch(
        {name: row[at] for name, row in ragged.tokens.items()},
        np.array([length for _, length in pieces], np.int32),
        prefix=np.array(prefix, np.int32) if families else None,
    )
    whole = sum(lengths[member.number] for member in members)
    return SharedRun(batch, [member.number for member in members], whole - len(at))


def own_rows(results: Mapping[str, list[Any]], runs: Sequence[SharedRun], count: int) -> OutputRows:
    """The caller's rows in its order, of all sequences of all runs; those of prefixes stay behind."""
    starts = accumulate((run.batch.seq_lens.size for run in runs), initial=0)
    own = [(run.callers, slice(start, start + len(run.callers))) for run, start in zip(runs, starts, strict=False)]
    return in_order(((callers, {name: rows[part] for name, rows in results.items()}) for callers, part in own), count)
