# SPDX-License-Identifier: Apache-2.0
"""Values of padding masks, from and to which slots hold tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import MaskInfo, Metadata

from .errors import SessionError


def kept_slots(mask: MaskInfo, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values of the mask's input are those of tokens."""
    if not mask.plain:
        return np.asarray(~np.isin(values, mask.masked))
    return np.asarray((values != 0) == (mask.kept[0] != 0))


def mask_values(mask: MaskInfo, is_token: npt.NDArray[np.bool_], dtype: str) -> npt.NDArray[Any]:
    """A plain mask's values for tokens where `is_token` is true."""
    return np.where(is_token, mask.kept[0], mask.masked[0]).astype(dtype)


def check_padding(feeds: Mapping[str, Any], metadata: Metadata) -> None:
    """Raises SessionError where padded slots of a padded model hold other ids than those that it was made for.

    Arrays on the GPU are not looked at.
    """
    filled_inputs = [item for item in metadata.token_inputs() if item.fills_padding]
    mask = feeds.get(metadata.mask.input or "") if filled_inputs and not metadata.is_packed else None
    if not isinstance(mask, np.ndarray):
        return
    for item in filled_inputs:
        grid = feeds.get(item.name)
        if not isinstance(grid, np.ndarray):
            continue
        if metadata.mask.lengths:
            is_token = np.asarray(np.arange(grid.shape[1]) < mask.reshape(-1, 1))
        else:
            is_token = kept_slots(metadata.mask, mask)
        wrong = np.argwhere(~is_token & (grid != item.padding))
        if len(wrong):
            row, slot = (int(index) for index in wrong[0])
            raise SessionError(
                f"'{item.name}' holds {grid[row, slot]} in the padding of sequence {row} (slot {slot}), allowed: "
                f"{item.padding}: the model reads padding, and was made for that; fill padding with {item.padding}, or "
                "rewrite the model with --padding-id"
            )
