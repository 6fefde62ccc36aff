# SPDX-License-Identifier: Apache-2.0
"""Ragged sample batches, as inputs of the original and, with the same tokens, of the rewritten model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, helper
from padfree.contract.names import PER_SEQUENCE, PREFIX

from ..analysis import IdRule, with_rules
from ..files import Array, fed_inputs
from ..importing import sequence_inputs_of, shared_inputs_of

LONGEST, RAGGED = "longest", "ragged"  # names of batches
_LONGEST = 512  # tokens of the longest sequence, where the model allows more: verification stays a matter of seconds
_LONGEST_WITHOUT_LIMIT = 128  # where the model knows no largest position
_IDS_WITHOUT_LIMIT = 2  # ids are drawn below this where the model's table is not known
_RAGGED = 19  # tokens of the longest sequence of a ragged batch, where the model allows so many
_SHORT = 3  # tokens of the longest sequence of a batch with much padding
_FURTHER = 8  # slots of further padding
_MANY = 32  # sequences of one length, short enough for padding's effect to stand out: zeros next to negative numbers
_EVEN = (1, 2)  # their lengths
_FILLERS = (0, 1, 2)  # ids that padded slots may hold: those that tokenizers pad with
_FILLER_TOKENS = 5
_SHARED = 7  # tokens of a prefix


@dataclass(frozen=True)
class Batch:
    """One ragged batch; mask is bool [B,S]."""

    name: str
    mask: npt.NDArray[np.bool_]
    keeps_first_slot: bool = True  # whether the mask keeps the first slot of every sequence
    filler_tokens: int = 0
    has_empty: bool = False  # the rewritten model also gets an empty sequence before each one
    shared_tokens: int = 0  # all sequences begin with so many, which are one more sequence of the rewritten model

    def left_padded(self) -> Batch:
        """The batch with the tokens of every sequence at the other end of its row."""
        return replace(self, mask=self.mask[:, ::-1].copy())

    def over(self, values: Array) -> npt.NDArray[np.bool_]:
        """The mask in a shape that broadcasts over an input [B,S,...]."""
        return self.mask.reshape(*self.mask.shape, *[1] * (values.ndim - 2))


@dataclass(frozen=True)
class Sample:
    """Inputs of a rewritten model, and the mask of their batch, bool [B,S]."""

    feeds: Mapping[str, Array]
    mask: npt.NDArray[np.bool_]


def sample_of(original: ModelProto, metadata: Mapping[str, Any], *, seed: int = 0) -> Sample:
    """The ragged batch among those that `verify_ids` uses."""
    rng = np.random.default_rng(seed)
    batch = next(item for item in make_batches(metadata, rng) if item.name == RAGGED)
    return Sample(feeds_of(original, metadata, batch, rng)[1], batch.mask)


def make_batches(metadata: Mapping[str, Any], rng: np.random.Generator) -> list[Batch]:
    """One token, the longest sequence, ragged ones; for the padded interface also left-padded and holed masks.

    Both are left out if the original is right only for right-padded masks, and the holed one if masks must have no
    holes. All batches are left-padded if the original is right only for these.
    """
    batches = _of_any_padding(metadata, rng)
    return [batch.left_padded() for batch in batches] if _is_left_padded(metadata) else batches


def _is_left_padded(metadata: Mapping[str, Any]) -> bool:
    return bool(metadata.get("coverage", {}).get("left_padded_because"))


def _of_any_padding(metadata: Mapping[str, Any], rng: np.random.Generator) -> list[Batch]:
    limit = metadata.get("max_positions")
    longest = _LONGEST_WITHOUT_LIMIT if limit is None else min(limit, _LONGEST)
    some = max(1, min(longest, _RAGGED))
    lengths = [some, 1, *(int(length) for length in rng.integers(1, some + 1, 3))]
    batches = [
        Batch("one token", _prefix_mask([1])),
        Batch(RAGGED, _prefix_mask(lengths)),
        Batch(LONGEST, _prefix_mask([longest])),
    ]
    if has_no_mask(metadata) and metadata["interface"] == "padded":
        return [Batch(item.name, np.ones_like(item.mask)) for item in batches]  # every slot is a token
    if metadata["interface"] == "packed":
        mask = _prefix_mask(lengths)
        batches.append(Batch("filler and empty", mask, filler_tokens=_FILLER_TOKENS, has_empty=True))
        return [*batches, *_shared_batches(metadata, lengths, some)]
    takes_lengths = (metadata.get("mask") or {}).get("lengths", False)
    one_sided = metadata.get("coverage", {}).get("right_padded_only", False) or _is_left_padded(metadata)
    if takes_lengths or one_sided:
        return batches  # under other masks the original's attention reads padding, and lengths cannot express them
    prefix = _prefix_mask(lengths)
    holed = rng.random(prefix.shape) < 0.6
    holed[:, 0] = True
    batches.append(Batch("left-padded", prefix[:, ::-1].copy(), keeps_first_slot=False))
    may_have_holes = not metadata.get("coverage", {}).get("contiguous_because")
    return [*batches, Batch("holed", holed)] if may_have_holes else batches


def _shared_batches(metadata: Mapping[str, Any], lengths: Sequence[int], longest: int) -> list[Batch]:
    """A batch whose sequences share a prefix, if the rewritten model may take it once."""
    shared = min(_SHARED, longest - 1)
    if shared < 1 or not any(item["role"] == PREFIX for item in metadata["inputs"]):
        return []
    full = [longest] * len(lengths) if _is_left_padded(metadata) else lengths  # where a prefix is at slot 0
    mask = _prefix_mask([max(length, shared + 1) for length in full])
    return [Batch("shared prefix", mask, filler_tokens=_FILLER_TOKENS, shared_tokens=shared)]


def batches_padded_further(metadata: Mapping[str, Any]) -> list[Batch]:
    """Batches with more slots than their longest sequence has tokens: a few more, and as many as there may be.

    Some hold two sequences, others many of one or two tokens each, which have no padding but these slots. There are no
    batches where the model has no room for padding.
    """
    limit = metadata.get("max_positions")
    most = _LONGEST_WITHOUT_LIMIT if limit is None else min(limit, _LONGEST)
    batches = []
    for lengths, slots in ((_RAGGED, _RAGGED + _FURTHER), (_SHORT, most)):
        longest, width = min(lengths, most - 1), min(slots, most)
        if longest > 0:
            mask = np.asarray(np.arange(width) < np.array([longest, 1])[:, None])
            batches.append(Batch(f"{longest} tokens in {width} slots", mask))
    for length in _EVEN:
        width = min(length + _FURTHER, most)
        if width > length:
            mask = np.broadcast_to(np.arange(width) < length, (_MANY, width))
            batches.append(Batch(f"{_MANY} of {length} tokens in {width} slots", mask))
    return [batch.left_padded() for batch in batches] if _is_left_padded(metadata) else batches


def paddings(feeds: Mapping[str, Array], metadata: Mapping[str, Any], batch: Batch) -> Iterator[dict[str, Array]]:
    """The original's inputs as they are, then with a single id in all padded slots; masks and the like stay."""
    mask = metadata.get("mask") or {"input": None}
    limits = token_limits(metadata)
    ids = [name for name, limit in limits.items() if name != mask["input"] and limit]
    yield dict(feeds)
    if metadata.get("id_rules") or not ids:
        return
    for filler in _FILLERS:
        padded = {name: np.where(batch.over(feeds[name]), feeds[name], min(filler, limits[name] - 1)) for name in ids}
        yield {**feeds, **{name: values.astype(feeds[name].dtype) for name, values in padded.items()}}


def has_no_mask(metadata: Mapping[str, Any]) -> bool:
    """Whether the model has no mask: every slot that the original gets is a token."""
    return "mask" in metadata and metadata["mask"] is None


def token_limits(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of the inputs with values for every token, by name."""
    return {item["name"]: item["limit"] for item in metadata["inputs"] if item["role"] == "tokens"}


def sequence_inputs(metadata: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The descriptions of the inputs with a row for every sequence, by name; the others are [B,S,...]."""
    return {item["name"]: item for item in metadata["inputs"] if item["role"] == PER_SEQUENCE}


def fillers(metadata: Mapping[str, Any]) -> dict[str, int]:
    """What the mask's input holds in padded slots."""
    mask = metadata.get("mask")
    return {mask["input"]: mask["masked"][0]} if mask else {}


def feeds_of(
    original: ModelProto, metadata: Mapping[str, Any], batch: Batch, rng: np.random.Generator
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The batch as the original's inputs, and as the rewritten model's."""
    feeds = _original_feeds(original, metadata, batch, rng)
    own = (metadata.get("mask") or {}).get("input")
    rules = {name: IdRule.of(entry) for name, entry in metadata.get("id_rules", {}).items()}
    feeds_by_rule = with_rules(feeds, rules, batch.mask)
    if own is not None and own in rules:  # the mask is computed from it
        feeds_by_rule[own] = np.where(batch.mask, feeds_by_rule[own], feeds[own]).astype(feeds[own].dtype)
    feeds = feeds_by_rule
    for name in token_limits(metadata) if batch.shared_tokens else ():
        feeds[name][:, : batch.shared_tokens] = feeds[name][:1, : batch.shared_tokens]
    return feeds, feeds if metadata["interface"] == "padded" else _packed_feeds(feeds, metadata, batch, rng)


def _prefix_mask(lengths: Sequence[int]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.arange(max(lengths)) < np.array(lengths)[:, None])


def _original_feeds(
    original: ModelProto, metadata: Mapping[str, Any], batch: Batch, rng: np.random.Generator
) -> dict[str, Array]:
    """The original's inputs; one that the rewritten model's metadata does not list is the mask.

    A mask input holds values that keep slots at tokens and values that mask them at padding, whatever else it means.
    """
    mask = metadata.get("mask") or {"input": None, "kept": [1], "masked": [0]}
    limits = token_limits(metadata)
    rows, of_sequences = sequence_inputs(metadata), sequence_inputs_of(original)
    shared_inputs = shared_inputs_of(original)
    excluded_ids = metadata.get("coverage", {}).get("excluded_ids", {})
    feeds: dict[str, Array] = {}
    for item in fed_inputs(original):
        dtype = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        widths = [dim.dim_value for dim in item.type.tensor_type.shape.dim[2:]]
        if item.name in rows:
            values = _sequence_values(rows[item.name], len(batch.mask), rng).astype(dtype)
            feeds[item.name] = np.asarray(values[0]) if rows[item.name].get("shared") else values
        elif item.name in limits and np.issubdtype(dtype, np.floating):  # embeddings
            feeds[item.name] = rng.standard_normal((*batch.mask.shape, *widths)).astype(dtype)
        elif item.name in limits and widths:  # several numbers per token, which are neither masks nor positions
            feeds[item.name] = rng.integers(0, limits[item.name] or _IDS_WITHOUT_LIMIT, (*batch.mask.shape, *widths))
            feeds[item.name] = feeds[item.name].astype(dtype)
        elif item.name in limits:
            limit = limits[item.name] or _IDS_WITHOUT_LIMIT
            ids = rng.integers(0, limit, batch.mask.shape)
            own = item.name == mask["input"]
            if own and not limits[item.name]:
                ids = rng.choice(mask["kept"], batch.mask.shape)
            elif not limits[item.name]:  # positions may index a table that is cut to the sequence's length
                ids = np.minimum(ids, np.arange(batch.mask.shape[1]))
            refused_ids = {*excluded_ids.get(item.name, ()), *(mask["masked"] if own else ())}
            other = next(value for value in range(len(refused_ids) + 1) if value not in refused_ids)
            ids = np.where(np.isin(ids, list(refused_ids)) & batch.mask, other, ids)
            padding = rng.choice(mask["masked"], batch.mask.shape) if own else ids
            feeds[item.name] = np.where(batch.mask, ids, padding).astype(dtype)
        elif mask.get("lengths") and item.name == mask["input"]:
            feeds[item.name] = batch.mask.sum(1).reshape(-1, *[1] * (len(item.type.tensor_type.shape.dim) - 1))
            feeds[item.name] = feeds[item.name].astype(dtype)
        elif item.name in of_sequences:  # nothing reads it
            feeds[item.name] = np.zeros((len(batch.mask), *of_sequences[item.name]), dtype)
        elif item.name in shared_inputs:
            feeds[item.name] = np.zeros(shared_inputs[item.name], dtype)
        else:
            feeds[item.name] = np.where(batch.mask, mask["kept"][0], mask["masked"][0]).astype(dtype)
    return feeds


def _sequence_values(item: Mapping[str, Any], count: int, rng: np.random.Generator) -> Array:
    """A row for each of `count` sequences."""
    shape = (count,) if item.get("width") is None else (count, item["width"])
    if np.issubdtype(np.dtype(item["dtype"]), np.floating):
        return rng.standard_normal(shape)
    return rng.integers(0, item["limit"] or _IDS_WITHOUT_LIMIT, shape)


def _packed_feeds(
    feeds: Mapping[str, Array], metadata: Mapping[str, Any], batch: Batch, rng: np.random.Generator
) -> dict[str, Array]:
    lengths, shared = batch.mask.sum(1).astype(np.int32), batch.shared_tokens
    if batch.has_empty:
        lengths = np.stack([np.zeros_like(lengths), lengths], axis=1).reshape(-1)
    if shared:
        lengths = np.append(lengths - np.int32(shared), np.int32(shared))
    packed: dict[str, Array] = {}
    for item in metadata["inputs"]:
        name, role = item["name"], item["role"]
        if role == "seq_lens":
            packed[name] = lengths
        elif role == "max_seqlen":
            packed[name] = np.zeros(batch.mask.shape[1], np.int32)
        elif role == PREFIX:
            parent, sequences = (len(lengths) - 1, len(lengths) - 1) if shared else (-1, len(lengths))
            packed[name] = np.full(len(lengths), -1, np.int32)
            packed[name][:sequences] = parent
        elif role == PER_SEQUENCE:
            values = feeds[name]
            if item.get("shared"):
                values = np.broadcast_to(values, (len(lengths), *values.shape))
            elif batch.has_empty:
                values = np.repeat(values, 2, axis=0)
            packed[name] = values.astype(item["dtype"])
        else:
            tokens = feeds[name][batch.mask & (np.arange(batch.mask.shape[1]) >= shared)]
            if shared:
                tokens = np.concatenate([tokens, feeds[name][0, :shared]])
            filler = rng.integers(0, item["limit"] or _IDS_WITHOUT_LIMIT, (batch.filler_tokens, *tokens.shape[1:]))
            dtype = tokens.dtype if np.issubdtype(tokens.dtype, np.floating) else np.dtype(np.int32)
            packed[name] = np.concatenate([tokens, filler]).astype(dtype)
    return packed
