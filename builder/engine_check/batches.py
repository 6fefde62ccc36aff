# SPDX-License-Identifier: Apache-2.0
"""The ragged batches that a new engine is checked with: few tokens, as a CPU computes the expected answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import InputInfo, Metadata, Profile
from padfree.contract.names import PREFIX
from padfree.onnx_tools.analysis import IdRule, with_rules
from padfree.runtime import Array, packed_feeds, padded_inputs, random_rows, random_values
from padfree.runtime.request import RaggedBatch

from ..compare.batches import ComparedBatch, Mask, prefix_mask

LONGEST = 512
"""Tokens of the longest sequence, where the profile allows more: a CPU computes its answers."""
LONG = 1100
"""Tokens of one more sequence, where the profile and a CPU allow it: long ones take other kernels."""
MIXED = 128
"""Tokens of the longest sequence of the mixed batch, where the profile allows so many."""
SEQUENCES = 8
FILLER = 29
AROUND_EMPTY = (0, 33, 0, 0, 5, 1, 0)
"""Lengths of a packed batch with empty sequences at both ends and in between."""
SHARED = 100
"""Tokens that sequences of one more packed batch continue, where the model takes shared prefixes."""
AFTER_SHARED = (33, 1, 70)
"""Lengths of these sequences."""
_SEED = 0


@dataclass(frozen=True)
class CheckedBatch(ComparedBatch):
    """One batch. `feeds` holds the token inputs alone, [B, S] or [B, S, N]; `filler` what follows the last sequence.

    of_sequences: inputs with a row for every sequence, [B] or [B, N].
    prefix: int32 [B], the sequence that each continues, or -1; None: none does.
    """

    filler: Mapping[str, Array] = field(default_factory=dict)
    of_sequences: Mapping[str, Array] = field(default_factory=dict)
    prefix: npt.NDArray[np.int32] | None = None

    @property
    def filler_tokens(self) -> int:
        """How many tokens follow the last sequence."""
        return max(map(len, self.filler.values()), default=0)

    def inputs(self, metadata: Metadata) -> dict[str, Array]:
        """The model's input arrays, as its interface wants them."""
        if metadata.is_packed:
            tokens = {
                name: np.concatenate([grid[self.mask], self.filler.get(name, grid[0, :0])])
                for name, grid in self.feeds.items()
            }
            lengths = self.seq_lens.astype(np.int32)
            return packed_feeds(RaggedBatch(tokens, lengths, self.of_sequences, self.prefix), metadata)

        def grid_of(item: InputInfo) -> Array:
            is_token = self.mask.reshape(*self.mask.shape, *[1] * len(item.trailing_shape))
            return np.where(is_token, self.feeds[item.name], metadata.filler(item)).astype(item.dtype)

        return padded_inputs(metadata, self.mask, self.of_sequences, grid_of)


def make_batches(
    metadata: Metadata, profile: Profile, *, most_tokens: int, most_long: int = 0
) -> tuple[CheckedBatch, ...]:
    """One token, mixed lengths, the longest sequence; packed: filler and empty sequences, too, padded: holes.

    And one long sequence, where the profile allows it, and sequences that share a prefix, where the model does.

    Args:
        metadata: the rewritten model's.
        profile: what the engine takes in one run.
        most_tokens: of a batch, however much the profile allows.
        most_long: of the batch with the long sequence.
    """
    rng = np.random.default_rng(_SEED)
    most = min(most_tokens, profile.max_tokens)
    longest = max(1, min(LONGEST, profile.max_seq_len, most))
    count = min(SEQUENCES, profile.max_batch)
    mixed = [int(length) for length in rng.permutation(np.geomspace(min(MIXED, longest), 1, count).round())]
    if metadata.mask.input is None and not metadata.is_packed:  # every slot is a token
        even = [min(longest, MIXED // 4)] * min(count, 3)
        lengths_by_name = {"one token": [1], "even": _fitting(even, most), "longest": [longest]}
        return tuple(_batch(name, prefix_mask(lengths), metadata, rng) for name, lengths in lengths_by_name.items())
    lengths_by_name = {"one token": [1], "mixed": _fitting(mixed, most), "longest": [longest]}
    batches = [_batch(name, prefix_mask(lengths), metadata, rng) for name, lengths in lengths_by_name.items()]
    if metadata.is_packed:
        lengths = [min(length, longest) for length in AROUND_EMPTY[: profile.max_batch] if length or count > 1]
        lengths = _fitting(lengths or [1], most)
        filler = min(FILLER, profile.max_tokens - sum(lengths))
        if max(lengths) or filler:
            batches.append(_batch("filler and empty", prefix_mask(lengths), metadata, rng, filler))
    elif _takes_holes(metadata):
        mask = rng.random((len(_fitting(mixed, most)), min(MIXED // 4, longest))) < 0.6
        mask[:, 0] = True  # heads that read the first slot read a token
        batches.append(_batch("holes", mask, metadata, rng))
    long = min(LONG, profile.max_seq_len, profile.max_tokens, most_long)
    if long > LONGEST:
        batches.append(_batch("long", prefix_mask([long]), metadata, rng))
    shared = min(SHARED, profile.max_seq_len // 2, most // 2)
    if metadata.input_of_role(PREFIX) is not None and shared and profile.max_batch > 1:
        own = [min(length, profile.max_seq_len - shared) for length in AFTER_SHARED[: profile.max_batch - 1]]
        lengths = [*_fitting(own, most - shared), shared]
        prefix = np.array([len(lengths) - 1] * (len(lengths) - 1) + [-1], np.int32)
        batches.append(replace(_batch("shared prefix", prefix_mask(lengths), metadata, rng), prefix=prefix))
    return tuple(batches)


def make_batch(lengths: Sequence[int], metadata: Metadata) -> CheckedBatch:
    """Random tokens of sequences of these lengths, the same every time."""
    return _batch("measured", prefix_mask(lengths), metadata, np.random.default_rng(_SEED))


def _takes_holes(metadata: Metadata) -> bool:
    coverage = metadata.raw.get("coverage", {})
    if metadata.mask.lengths:
        return False
    return not coverage.get("right_padded_only") and not coverage.get("contiguous_because")


def _fitting(lengths: Sequence[int], most: int) -> list[int]:
    """The first of these lengths that have no more than `most` tokens together, and one at least."""
    sums = np.cumsum(lengths)
    fitting = [length for length, total in zip(lengths, sums, strict=True) if total <= most]
    return fitting or [min(lengths[0], most)]


def _batch(name: str, mask: Mask, metadata: Metadata, rng: np.random.Generator, filler_tokens: int = 0) -> CheckedBatch:
    items = metadata.token_inputs()
    rules = _rules(metadata)
    grids = {item.name: _values(item, mask, metadata, rng) for item in items}
    rows = random_rows(metadata, len(mask), rng)
    arrays = with_rules({**grids, **rows}, rules, mask)
    filler: dict[str, Array] = {}
    if filler_tokens:
        in_filler = np.ones((1, filler_tokens), np.bool_)
        values = {item.name: _values(item, in_filler, metadata, rng) for item in items}
        filler = {name: grid[0] for name, grid in with_rules(values, rules, in_filler).items()}
    feeds = {name: arrays[name] for name in grids}
    return CheckedBatch(name, feeds, mask, filler, {name: arrays[name] for name in rows})


def _values(item: InputInfo, mask: Mask, metadata: Metadata, rng: np.random.Generator) -> Array:
    """Random values of one token input that the model takes, in all slots: [B, S] or [B, S, N]."""
    rule, shape = metadata.mask, (*mask.shape, *item.trailing_shape)
    own = item.name == rule.input
    if own and item.limit is None:
        return rng.choice(np.asarray(rule.kept, np.int32), shape)
    refused_ids = (*item.excluded, *(rule.masked if own else ()))
    values = random_values(shape, rng, limit=item.limit, refused_ids=refused_ids, are_floats=item.holds_floats)
    if item.limit is None and not item.trailing_shape and not item.holds_floats:
        # Positions may choose from a table as long as the sequence.
        values = np.minimum(values, np.arange(mask.shape[1], dtype=np.int32))
    return values


def _rules(metadata: Metadata) -> dict[str, IdRule]:
    """The rules for ids, by the names of the rewritten model's inputs."""
    entries = metadata.raw.get("id_rules", {})
    names = {item.original_name: item.name for item in metadata.inputs}
    rules = {names[name]: IdRule.of(entry) for name, entry in entries.items() if name in names}
    return {name: replace(rule, count=names.get(rule.count)) if rule.count else rule for name, rule in rules.items()}
