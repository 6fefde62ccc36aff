# SPDX-License-Identifier: Apache-2.0
"""What Session asks of an execution backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Backend(Protocol):
    """Runs one set of host arrays and returns host arrays."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model once; outputs by name."""

    def close(self) -> None:
        """Frees what the backend holds; harmless when called again."""


def widen_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bfloat16 given as its bits -> float32 with the same values (NumPy has no bfloat16)."""
    wide: npt.NDArray[np.uint32] = np.left_shift(bits.astype(np.uint32), np.uint32(16))
    return wide.view(np.float32)
