# SPDX-License-Identifier: Apache-2.0
"""Inputs of a request that have a row for every sequence, as the number of a language: [B], or [B, N]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from padfree.contract.metadata import InputInfo, Metadata

from .errors import SessionError
from .rows import INT32_MAX, Array


def read_sequence_values(columns: Mapping[str, Any], metadata: Metadata, count: int) -> dict[str, Array]:
    """The values of all such inputs, checked: int32 or float32, [count] or [count, N].

    Args:
        columns: input name -> a number or a row of N numbers for every sequence; a row of one may stand for its number.
            Of what the model has once for a batch, one for all of them will do. Lengths of prompts that are not there
            are 0.
        metadata: the model's inputs.
        count: how many sequences there are.

    Raises:
        SessionError: another number of rows, other types or shapes, or values outside of the model's tables.
    """
    without_prompts = np.zeros(count, np.int32)  # check_names refuses requests without any other
    return {
        item.name: read_values(columns.get(item.name, without_prompts), item, count)
        for item in metadata.sequence_inputs()
    }


def read_values(value: Any, item: InputInfo, count: int) -> Array:
    """The values of one such input; see `read_sequence_values`."""
    kinds, kind = ("iuf", "numbers") if item.holds_floats else ("biu", "integers")
    expectation = f"one for every sequence, {[count, *item.trailing_shape]}"
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SessionError(f"'{item.name}': cannot become an array ({error}); pass {kind}, {expectation}") from error
    shape, width = (count, *item.trailing_shape), item.width or 1
    if item.shared and array.shape == item.trailing_shape and array.size == width:
        array = np.broadcast_to(array, shape)
    if array.dtype.kind not in kinds and array.size:
        raise SessionError(f"'{item.name}' has type {array.dtype}, allowed: {kind}; pass {expectation}")
    if not array.ndim or len(array) != count or array.size != count * width:
        raise SessionError(f"'{item.name}' has shape {list(array.shape)}, allowed: {list(shape)}; pass {expectation}")
    if item.holds_floats:
        with np.errstate(over="ignore"):  # what float32 does not hold is refused as not finite
            array = array.astype(np.float32)
    _check_values(array, item)
    return np.ascontiguousarray(array.reshape(shape), np.float32 if item.holds_floats else np.int32)


def sample_values(items: Iterable[InputInfo], count: int) -> dict[str, Array]:
    """Zeros for such inputs, which every model takes: for requests that only show whether it answers, and how fast."""
    return {
        item.name: np.zeros((count, *item.trailing_shape), np.float32 if item.holds_floats else np.int32)
        for item in items
    }


def _check_values(array: Array, item: InputInfo) -> None:
    """Raises SessionError for values outside of the model's table, of more than 32 bits, or that are not finite."""
    if item.holds_floats:
        wrong, requirement = ~np.isfinite(array), "finite numbers"
    else:
        least, limit = (-INT32_MAX - 1, INT32_MAX + 1) if item.limit is None else (0, item.limit)
        wrong, requirement = (array < least) | (array >= limit), f"{least}..{limit - 1}"
    if not wrong.any():
        return
    at = tuple(int(index) for index in np.argwhere(wrong)[0])
    raise SessionError(
        f"'{item.name}' is {array[at]} for sequence {at[0]}, allowed: {requirement}; pass a value that the model has"
    )
