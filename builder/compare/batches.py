# SPDX-License-Identifier: Apache-2.0
"""Padded batches with their masks: what the original gets, and what valid tokens are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from padfree.onnx_tools.analysis import IdRule, with_rules
from padfree.runtime import Array, kept_slots, mask_values, random_values

from ..errors import BuildError

if TYPE_CHECKING:
    from .original import Input, Original

Mask = npt.NDArray[np.bool_]

PREFIX, LEFT, HOLES = "prefix", "left padding", "holes"


@dataclass(frozen=True)
class ComparedBatch:
    """One padded batch.

    Attributes:
        name: for messages.
        feeds: the original's inputs, the mask included: [B, S], or [B, S, N] for N numbers per token; [B] or [B, N] for
            those with a row per sequence.
        mask: bool [B, S], True at valid tokens.
    """

    name: str
    feeds: Mapping[str, Array]
    mask: Mask

    @property
    def kind(self) -> str:
        """What the mask is like: every sequence at the left (prefix), at the right (left padding), or with holes."""
        slots, lengths = np.arange(self.mask.shape[1]), self.seq_lens[:, None]
        if np.array_equal(self.mask, slots < lengths):
            return PREFIX
        return LEFT if np.array_equal(self.mask, slots >= self.mask.shape[1] - lengths) else HOLES

    @property
    def seq_lens(self) -> npt.NDArray[np.int64]:
        """Valid tokens of every sequence, [B]."""
        return np.asarray(self.mask.sum(1), np.int64)

    def rows(self, name: str) -> list[Array]:
        """The valid tokens of one input, an array a sequence."""
        return [row[is_token] for row, is_token in zip(self.feeds[name], self.mask, strict=True)]

    def request(self, original: Original) -> dict[str, list[Array]]:
        """The valid tokens and the values of sequences, as Session.run takes them."""
        tokens = {item.name: self.rows(item.name) for item in original.tokens}
        count = len(self.mask)
        return tokens | {
            item.name: [self.feeds[item.name]] * count if item.shared else list(self.feeds[item.name])
            for item in original.rows
        }

    def part(self, sequence: int, original: Original) -> ComparedBatch:
        """One sequence alone, without the padding after its last valid token, or before its first one."""
        tokens = np.flatnonzero(self.mask[sequence])
        start = int(tokens[0]) if tokens.size and original.is_left_padded else 0
        columns = slice(start, int(tokens[-1]) + 1 if tokens.size else 1)
        rows = slice(sequence, sequence + 1)
        parts = {item.name: () if item.shared else (rows, columns)[: 1 + is_grid(item)] for item in original.inputs}
        feeds = {name: values[parts[name]] for name, values in self.feeds.items()}
        mask = self.mask[sequence : sequence + 1, columns]
        return replace(self, name=f"{self.name}, request {sequence} alone", feeds=feeds, mask=mask)

    def padded_as_usual(self, original: Original) -> ComparedBatch:
        """The batch of the same valid tokens with all padding where the original expects it."""
        side = "left" if original.is_left_padded else "right"
        return make_batch(f"{self.name}, {side}-padded", self.request(original), original)

    def is_usual(self, original: Original) -> bool:
        """Whether the padding lies where the original expects it: at the right, or at the left."""
        left = original.is_left_padded
        return self.kind == (LEFT if left else PREFIX) or bool(self.mask.all())


def is_grid(item: Input) -> bool:
    """Whether an input is [B, S, ...], and has no row for every sequence instead."""
    return not item.of_sequences


def make_batch(name: str, rows: Mapping[str, list[Array]], original: Original) -> ComparedBatch:
    """A batch padded as the original expects; token inputs that are not given are zeros, padded slots if they may be.

    Raises:
        BuildError: lengths differ, and the model has no mask.
    """
    first_input = next(item.name for item in original.tokens if item.name in rows)
    lengths = np.asarray([len(row) for row in rows[first_input]], np.int64)
    if not original.has_mask and len(set(lengths.tolist())) > 1:
        raise BuildError(
            f"{name}: the sequences have {lengths.min()} to {lengths.max()} tokens, and the original has no mask: "
            "every slot is a token; pass batches of sequences of one length"
        )
    mask = _usual_mask(lengths, original)
    padding = {item.original_name: item.padding for item in original.metadata.token_inputs()}
    feeds: dict[str, Array] = {}
    for item in original.tokens:
        grid = np.full((*mask.shape, *item.trailing_shape), padding.get(item.name, 0), item.dtype)
        if item.name in rows:
            grid[mask] = np.concatenate(rows[item.name])
        feeds[item.name] = grid
    for item in original.rows:
        values = np.asarray(rows[item.name], item.dtype).reshape(len(lengths), *item.trailing_shape)
        feeds[item.name] = _shared_value(name, item, values) if item.shared else values
    return with_mask(name, feeds, mask, original)


def _shared_value(name: str, item: Input, values: Array) -> Array:
    """What all rows of an input hold. Raises BuildError where they differ."""
    if bool((values != values[:1]).any()):
        raise BuildError(
            f"{name}: '{item.name}' differs between its sequences, and the original has it once for a whole batch; "
            "give it the same value in every entry of a batch"
        )
    return values[:1].reshape(item.trailing_shape)


def with_mask(name: str, feeds: Mapping[str, Array], mask: Mask, original: Original) -> ComparedBatch:
    """A batch of grids [B, S] and a mask, which becomes the original's mask input, or padding's ids."""
    rule, masked_feeds = original.metadata.mask, dict(feeds)
    if original.mask is not None and rule.lengths:
        masked_feeds[original.mask.name] = (
            mask.sum(1).reshape(-1, *original.mask.trailing_shape).astype(original.mask.dtype)
        )
    elif original.mask is not None:
        masked_feeds[original.mask.name] = mask_values(rule, mask, original.mask.dtype)
    elif rule.input is not None:
        grid = masked_feeds[rule.input]
        masked_feeds[rule.input] = np.where(mask, grid, rule.filler(rule.input)).astype(grid.dtype)
    for item in original.unread_inputs:
        masked_feeds.setdefault(item.name, np.zeros(item.shape(*mask.shape), item.dtype))
    return ComparedBatch(name, masked_feeds, mask)


def from_feeds(name: str, feeds: Mapping[str, Any], original: Original) -> ComparedBatch:
    """A batch of the original's own inputs, as data loaders give them.

    Raises:
        BuildError: an input is missing or not a grid of the shape that the others have.
    """
    arrays: dict[str, Array] = {}
    for item in original.inputs:
        if item.name not in feeds:
            raise BuildError(
                f"{name}: input '{item.name}' is missing, there are {', '.join(sorted(feeds))}; the data must hold all "
                f"inputs of the original"
            )
        arrays[item.name] = np.asarray(feeds[item.name]).astype(item.dtype)
    rule = original.metadata.mask
    like = original.tokens[0].name if rule.input is None or rule.lengths else rule.input
    for item in original.inputs:
        grid, axes = arrays[item.name], 0 if item.shared else 2 if is_grid(item) else 1
        if grid.ndim < axes or grid.shape != item.shape(*arrays[like].shape[:2]):
            sizes = ", ".join([*"BS"[:axes], *map(str, item.trailing_shape)])
            whose = "the mask " if rule.input else ""
            raise BuildError(
                f"{name}: input '{item.name}' has shape {list(grid.shape)}, {whose}'{like}' "
                f"{list(arrays[like].shape)}; pass grids [{sizes}] of one batch and length"
            )
    shape = arrays[like].shape
    if rule.input is not None and rule.lengths:
        mask = np.arange(shape[1]) < arrays[rule.input].reshape(-1, 1)
    else:
        mask = kept_slots(rule, arrays[like]) if rule.input else np.ones(shape, np.bool_)
    return ComparedBatch(name, arrays, mask)


def generate(
    original: Original, *, max_batch: int, max_seq_len: int, kinds: tuple[str, ...], seed: int
) -> tuple[ComparedBatch, ...]:
    """Seeded batches: one token, the longest sequence, no padding at all, ragged lengths; and other masks where asked.

    Lengths are spread evenly over their logarithm, so that every length class has its share. Padded slots hold random
    ids: a model that reads them shows it. Without a mask nothing is padded: the sequences of a batch have one length.
    """
    rng = np.random.default_rng(seed)
    count = min(max_batch, 8)
    some = max(1, min(max_seq_len, 64))
    lengths = [int(length) for length in rng.permutation(np.geomspace(max_seq_len, 1, count).round())]
    named_lengths: list[tuple[str, list[int]]] = [
        ("one token", [1]),
        ("no padding", [some] * min(count, 3)),
        ("ragged", lengths),
        ("short", [int(length) for length in rng.integers(1, min(max_seq_len, 16) + 1, count)]),
    ]
    if not original.has_mask:
        named_lengths = [*named_lengths[:2], ("longest", [max_seq_len]), ("short", [min(max_seq_len, 2)] * 2)]
    masks = {name: _usual_mask(batch_lengths, original) for name, batch_lengths in named_lengths}
    batches = [_random(name, mask, original, rng) for name, mask in masks.items()]
    if LEFT in kinds and original.has_mask:
        batches.append(_random(LEFT, prefix_mask(lengths)[:, ::-1].copy(), original, rng))
    if HOLES in kinds and original.has_mask:
        holes = rng.random((count, some)) < 0.6
        holes[:, 0] = True
        batches.append(_random(HOLES, holes, original, rng))
    return tuple(batches)


def prefix_mask(lengths: npt.ArrayLike) -> Mask:
    """The mask [B, S] of right-padded sequences of these lengths [B]; S is the longest one's, and 1 at the least."""
    sizes = np.asarray(lengths)
    return np.asarray(np.arange(max(1, int(sizes.max(initial=0)))) < sizes[:, None])


def _usual_mask(lengths: npt.ArrayLike, original: Original) -> Mask:
    """The mask [B, S] of sequences of these lengths [B], padded where the original expects it."""
    mask = prefix_mask(lengths)
    return mask[:, ::-1].copy() if original.is_left_padded else mask


def _random(name: str, mask: Mask, original: Original, rng: np.random.Generator) -> ComparedBatch:
    feeds, rule = dict[str, Array](), original.metadata.mask
    for item in (*original.tokens, *original.rows):
        refused_ids = (*item.excluded_ids, *(rule.masked if item.name == rule.input else ()))
        shape = item.shape(*mask.shape)
        values = random_values(shape, rng, limit=item.limit, refused_ids=refused_ids, are_floats=item.holds_floats)
        feeds[item.name] = values.astype(item.dtype)
    rules = {key: IdRule.of(entry) for key, entry in original.metadata.raw.get("id_rules", {}).items()}
    return with_mask(name, with_rules(feeds, rules, mask), mask, original)
