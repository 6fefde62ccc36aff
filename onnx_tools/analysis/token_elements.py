# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a padded tensor belong to tokens, along every axis of the sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..files import Array
from .layout import Layout
from .symbolic.facts import Shape

MaskArray = npt.NDArray[np.bool_]
Dims = tuple[int | str, ...]
"""Sizes of a tensor's axes: numbers, or texts such as "B", "S" and "B*S". Trailing axes left out are numbers."""

BATCH, SLOTS, BOTH, TOKENS, UNKNOWN = "B", "S", "B*S", "T", "?"
_DEFAULTS: Mapping[str, Dims] = {
    Layout.PACKED.value: (TOKENS,),
    Layout.PER_SEQUENCE.value: (BATCH,),
    Layout.CONSTANT.value: (),
    Layout.PADDED.value: (BATCH, SLOTS),
}


@dataclass(frozen=True)
class TokenRows:
    """The kept numbers of one tensor.

    values: [R, C], a row for every kept index along the axes whose sizes are texts.
    indices: [R, A], that index. axes: what these A axes are, such as ("B", "S"), the batch first. element: sizes of the
    other axes.
    """

    values: Array
    indices: npt.NDArray[np.int64]
    axes: tuple[str, ...]
    element: tuple[int, ...]


def dims_of_shape(shape: Shape | None) -> Dims | None:
    """Sizes as numbers and texts; None where the shape is not known."""
    if shape is None:
        return None
    constants = [size.constant() for size in shape]
    return tuple(str(size) if number is None else number for size, number in zip(shape, constants, strict=True))


def dims_of(output: Mapping[str, Any]) -> Dims | None:
    """Sizes of an output in a rewritten model's metadata; in older metadata, those that its layout implies."""
    if "dims" not in output:
        return _DEFAULTS[output["layout"]]
    return None if output["dims"] is None else tuple(output["dims"])


def padded_dims(output: Mapping[str, Any]) -> Dims | None:
    """Sizes of the same output in the original, which is padded."""
    if "original_dims" in output:
        return None if output["original_dims"] is None else tuple(output["original_dims"])
    dims = dims_of(output)
    return (BATCH, SLOTS, *dims[1:]) if dims and dims[0] == TOKENS else dims


def token_elements(dims: Dims, mask: MaskArray) -> MaskArray:
    """Which indices along the axes of batch and sequence belong to kept tokens; size 1 along all other axes.

    With several axes of the sequence, the slot on each must be kept; without any, sequences that keep a token count.

    Args:
        dims: the tensor's sizes.
        mask: [B,S], True at kept slots.
    """
    is_token: MaskArray = np.ones([1] * len(dims), np.bool_)
    batch = dims.index(BATCH) if BATCH in dims else None

    def along(values: MaskArray, *axes: int) -> MaskArray:
        """The values laid along these axes of the tensor."""
        in_axis_order = values if list(axes) == sorted(axes) else values.T
        return in_axis_order.reshape([values.shape[axes.index(i)] if i in axes else 1 for i in range(len(dims))])

    for axis, size in enumerate(dims):
        if size == BOTH:
            is_token = is_token & along(mask.reshape(-1), axis)
        elif size == BATCH:
            is_token = is_token & along(np.asarray(mask.any(1)), axis)
        elif size == SLOTS:
            is_token = is_token & (
                along(np.ones(mask.shape[1], np.bool_), axis) if batch is None else along(mask, batch, axis)
            )
    return is_token


def fits(shape: Sequence[int], dims: Dims | None, mask: MaskArray) -> bool:
    """Whether an array has these sizes, for a batch with this mask."""
    if dims is None:
        return True
    counts = {BATCH: mask.shape[0], SLOTS: mask.shape[1], BOTH: mask.size}
    return len(shape) >= len(dims) and all(
        counts.get(str(dim), size) == size for size, dim in zip(shape, dims, strict=False)
    )


def token_numbers(values: Array, dims: Dims | None, mask: MaskArray) -> TokenRows:
    """The kept numbers of a tensor that fits; all of them, in one column, where its shape is not known.

    Args:
        values: the tensor.
        dims: its sizes.
        mask: bool [B,S].
    """
    axes_known = (UNKNOWN,) * values.ndim if dims is None else dims
    whole = (*axes_known, *values.shape[len(axes_known) :])
    axes = sorted((axis for axis, size in enumerate(whole) if isinstance(size, str)), key=lambda at: whole[at] != BATCH)
    others = [axis for axis, size in enumerate(whole) if not isinstance(size, str)]
    element = tuple(values.shape[axis] for axis in others)
    is_token = token_elements(whole, mask).transpose(*axes, *others)
    is_token = np.broadcast_to(is_token.reshape(is_token.shape[: len(axes)]), [values.shape[axis] for axis in axes])
    rows = values.transpose(*axes, *others)[is_token]
    names = tuple(str(whole[axis]) for axis in axes)
    return TokenRows(rows.reshape(len(rows), int(np.prod(element))), np.argwhere(is_token), names, element)


def packed_rows(values: Array, mask: MaskArray) -> TokenRows:
    """The rows of a tensor [T,...], with the slots that the batch's kept tokens have when padded."""
    count = int(mask.sum())
    element = values.shape[1:]
    flat = values[:count].reshape(min(count, len(values)), int(np.prod(element)))
    return TokenRows(flat, np.argwhere(mask), (BATCH, SLOTS), element)
