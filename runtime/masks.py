# SPDX-License-Identifier: Apache-2.0
"""Values of padding masks, from and to which slots hold tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import MaskInfo


def kept_slots(mask: MaskInfo, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which values of the mask's input are those of tokens."""
    if not mask.plain:
        return np.asarray(~np.isin(values, mask.masked))
    return np.asarray((values != 0) == (mask.kept[0] != 0))


def mask_values(mask: MaskInfo, kept: npt.NDArray[np.bool_], dtype: str) -> npt.NDArray[Any]:
    """A plain mask's values for tokens where `kept` is true."""
    return np.where(kept, mask.kept[0], mask.masked[0]).astype(dtype)
