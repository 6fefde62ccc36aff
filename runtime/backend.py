# SPDX-License-Identifier: Apache-2.0
"""What Session asks of an execution backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .errors import SessionError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RunOptions:
    """How an engine runs.

    Attributes:
        cuda_graphs: capture runs of sizes that come back in CUDA graphs.
        contexts: how many runs may be under way at once.
        max_graphs: graphs that every context keeps.
        max_graph_bytes: device memory that the graphs of every context may take.
    """

    cuda_graphs: bool = True
    contexts: int = 2
    max_graphs: int = 64
    max_graph_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("contexts", "max_graphs"):
            if getattr(self, name) < 1:
                raise SessionError(f"{name} is {getattr(self, name)}, allowed: 1 or more; leave it out for the default")


class Backend(Protocol):
    """Runs one set of arrays; any number of threads may call it."""

    def run(self, feeds: Mapping[str, Any], *, on_device: bool = False, stream: Any = None) -> dict[str, Any]:
        """Runs the model once.

        Args:
            feeds: input name -> array of the host, or what a DeviceReader made of one on the GPU.
            on_device: give DeviceArrays instead of NumPy arrays.
            stream: the caller's CUDA stream, for arrays on the GPU.
        """

    def close(self) -> None:
        """Waits for runs under way and frees what the backend holds; harmless when called again."""


@runtime_checkable
class DeviceReader(Protocol):
    """A backend that also takes arrays on the GPU."""

    def read_device_array(self, value: Any, name: str, stream: Any) -> Any:
        """Checks an array on the GPU for an input; its values are there in the order of `stream`."""


def widen_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bfloat16 given as its bits -> float32 with the same values (NumPy has no bfloat16)."""
    wide: npt.NDArray[np.uint32] = np.left_shift(bits.astype(np.uint32), np.uint32(16))
    return wide.view(np.float32)
