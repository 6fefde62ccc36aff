# SPDX-License-Identifier: Apache-2.0
"""From a checked ragged batch to a model's inputs, and from its outputs back to one result per sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from padfree.contract.metadata import InputInfo, Metadata, OutputInfo
from padfree.contract.names import PER_SEQUENCE, PREFIX

from .errors import SessionError
from .masks import mask_values
from .request import OutputRows, RaggedBatch
from .rows import Array, bounds_of, no_tokens
from .shared_values import check_shared


def packed_feeds(ragged: RaggedBatch, metadata: Metadata) -> dict[str, Array]:
    """Inputs of the packed interface: [T] or [T, N] of tokens, [B] or [B, N] of sequences, and their lengths.

    The lengths are seq_lens [B] or cu_seqlens [B+1], and max_seqlen [S], of which only the shape is read. A batch of
    empty sequences gets one filler token: engines take at least one.

    Raises:
        SessionError: sequences differ in a value that the model takes once per batch.
    """
    check_shared(ragged, metadata)
    feeds: dict[str, Array] = {}
    for item in metadata.inputs:
        if item.role == "tokens":
            tokens = ragged.tokens[item.name]
            feeds[item.name] = tokens if tokens.size else no_tokens(item, 1)
        elif item.role == PER_SEQUENCE:
            feeds[item.name] = ragged.of_sequences[item.name]
        elif item.role == "seq_lens":
            feeds[item.name] = ragged.seq_lens
        elif item.role == "unread":
            feeds[item.name] = np.zeros(max(1, len(next(iter(ragged.tokens.values())))), dtype=np.int32)
        elif item.role == "cu_seqlens":
            feeds[item.name] = cumulative(ragged.seq_lens)
        elif item.role == PREFIX:
            feeds[item.name] = np.full(1, -1, np.int32) if ragged.prefix is None else ragged.prefix
        elif item.role == "max_seqlen":
            feeds[item.name] = np.zeros(max(1, int(ragged.seq_lens.max(initial=0))), dtype=np.int32)
    return feeds


def cumulative(seq_lens: Array) -> Array:
    """int32 [B+1]: where each sequence begins, and where the last one ends."""
    return bounds_of(seq_lens).astype(np.int32)


def padded_feeds(ragged: RaggedBatch, metadata: Metadata, width: int | None = None) -> dict[str, Array]:
    """Inputs of the padded interface: tokens and mask [B, S], right-padded to the longest sequence, or to `width`.

    Padded slots hold zeros, or the value by which the model itself finds padding, or an id that it does not look for.

    Raises:
        SessionError: lengths differ and the model has no mask, or sequences differ in a value that it takes once per
            batch.
    """
    check_shared(ragged, metadata)
    seq_lens = ragged.seq_lens
    width = max(1, int(seq_lens.max(initial=0))) if width is None else width
    if metadata.mask.input is None and bool((seq_lens != width).any()):
        raise SessionError(
            f"the sequences have {int(seq_lens.min(initial=width))} to {width} tokens and the model has no mask: with "
            "the padded interface every slot is a token; pass sequences of one length, or use the packed interface"
        )
    is_token = np.arange(width, dtype=np.int32)[None, :] < seq_lens[:, None]

    def grid_of(item: InputInfo) -> Array:
        grid = np.full((*is_token.shape, *item.trailing_shape), metadata.filler(item), dtype=item.dtype)
        grid[is_token] = ragged.tokens[item.name]
        return grid

    return padded_inputs(metadata, is_token, ragged.of_sequences, grid_of)


def padded_inputs(
    metadata: Metadata, is_token: Array, rows: Mapping[str, Array], grid_of: Callable[[InputInfo], Array]
) -> dict[str, Array]:
    """Inputs of the padded interface for any mask [B, S].

    Args:
        metadata: the model's inputs.
        is_token: the mask, True at tokens.
        rows: values of the inputs with a row per sequence, [B, ...], by name.
        grid_of: makes the values of a token input, [B, S, ...].
    """
    feeds: dict[str, Array] = {}
    for item in metadata.inputs:
        if item.role == "mask":
            feeds[item.name] = mask_values(metadata.mask, is_token, item.dtype)
        elif item.role == PER_SEQUENCE:
            values = rows[item.name].astype(item.dtype)
            feeds[item.name] = values[:1].reshape(item.trailing_shape) if item.shared else values
        elif item.role == "unread":
            feeds[item.name] = np.zeros((*is_token.shape, *item.trailing_shape), item.dtype)
        elif item.role == "seq_lens":
            feeds[item.name] = is_token.sum(1).reshape(-1, *item.trailing_shape).astype(item.dtype)
        else:
            feeds[item.name] = grid_of(item)
    return feeds


def split_outputs(outputs: Mapping[str, Any], ragged: RaggedBatch, metadata: Metadata) -> OutputRows:
    """One result per sequence, without padding: [len, ...] from [T, ...] or [B, S, ...], [...] from [B, ...].

    Other axes of size S are cut too: [H, len, len] from [B, H, S, S]. Constant outputs are the same for every sequence.
    A size that depends on values is taken as it is; the sequence has to run alone then. Results are views, even of
    single numbers ([] from [B]), because a run that is under way may still write them.

    Raises:
        SessionError: an output's shape does not fit its layout.
    """
    seq_lens = ragged.seq_lens.tolist()
    tokens = sum(seq_lens)
    ends = list(accumulate(seq_lens))
    results: OutputRows = {}
    for item in metadata.outputs:
        array = outputs[item.name]
        if item.unknown_size is not None and not (len(seq_lens) == 1 and item.sizes[0] == "B"):
            raise SessionError(
                f"output '{item.name}' is [{', '.join(str(size) for size in item.sizes)}]: which of its numbers are a "
                f"sequence's cannot be known where a size is {item.unknown_size}; "
                + ("pass one sequence at a time" if item.sizes[0] == "B" else "export the model without this output")
                + ", or run the padded file in onnxruntime or TensorRT itself"
            )
        if item.layout == "packed":
            fits = array.shape[0] >= tokens
        else:
            batch = item.sizes.index("B") if "B" in item.sizes else None
            fits = batch is None or (len(array.shape) > batch and array.shape[batch] == len(seq_lens))
        if not fits:
            raise SessionError(
                f"output '{item.name}' has shape {list(array.shape)}, which is not {item.layout} for {len(seq_lens)} "
                f"sequences of {tokens} tokens; make the model again with this version of padfree"
            )
        view = (...,) if isinstance(array, np.ndarray) else ()  # NumPy copies single numbers otherwise
        if item.layout == "packed":
            results[item.name] = [array[end - size : end] for end, size in zip(ends, seq_lens, strict=True)]
        elif item.rows_of == "B":
            results[item.name] = [array[index] for index in [(at, *view) for at in range(len(seq_lens))]]
        else:
            results[item.name] = [
                array[index] for index in [(*_own_part(item, at, size), *view) for at, size in enumerate(seq_lens)]
            ]
    return results


def _own_part(item: OutputInfo, sequence: int, length: int) -> tuple[int | slice, ...]:
    """Where a sequence's own numbers are in a padded output."""
    index_by_axis: dict[str, int | slice] = {"B": sequence, "S": slice(length)}
    return tuple(index_by_axis.get(str(size), slice(None)) for size in item.sizes)
