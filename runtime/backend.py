# SPDX-License-Identifier: Apache-2.0
"""What Session asks of an execution backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .errors import SessionError


@dataclass(frozen=True)
class RunOptions:
    """How an engine runs.

    Attributes:
        cuda_graphs: capture runs in CUDA graphs, for sizes that recur.
        contexts: how many runs may be under way at once.
        max_graphs: graphs that every context keeps.
        max_graph_bytes: device memory that the graphs of every context may take.
    """

    cuda_graphs: bool = True
    contexts: int = 2
    max_graphs: int = 256
    max_graph_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("contexts", "max_graphs"):
            if getattr(self, name) < 1:
                raise SessionError(f"{name} is {getattr(self, name)}, allowed: 1 or more; leave it out for the default")


class RunUnderWay(Protocol):
    """A run under way."""

    @property
    def outputs(self) -> dict[str, Any]:
        """Output name -> array. What is in arrays of the host is there when wait() has returned."""

    def wait(self) -> None:
        """Waits for the results, and gives back what the run has borrowed. Called once for every run."""


class Backend(Protocol):
    """Runs one set of arrays; any number of threads may call it.

    One that also takes arrays on the GPU has `read_device_array(value, name, stream)`, which checks one for an input.
    """

    def start(
        self, feeds: Mapping[str, Any], *, on_device: bool = False, stream: Any = None, patient: bool = True
    ) -> RunUnderWay | None:
        """Begins a run; whoever starts one has to wait for it.

        Args:
            feeds: as for run.
            on_device: as for run.
            stream: as for run.
            patient: waits while as many runs are under way as may be; otherwise there is None then, and no run.
        """

    def run(self, feeds: Mapping[str, Any], *, on_device: bool = False, stream: Any = None) -> dict[str, Any]:
        """Runs the model once.

        Args:
            feeds: input name -> array of the host, or what read_device_array made of one on the GPU.
            on_device: give DeviceArrays instead of NumPy arrays.
            stream: the caller's CUDA stream, for arrays on the GPU.
        """

    def close(self) -> None:
        """Waits for runs under way and frees what the backend holds; harmless when called again."""


def widen_bfloat16(bits: npt.NDArray[np.uint16], out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """bfloat16 given as its bits -> float32 with the same values (NumPy has no bfloat16), in `out` if there is one."""
    wide = np.empty(bits.shape, dtype=np.float32) if out is None else out
    np.left_shift(bits, np.uint32(16), out=wide.view(np.uint32))
    return wide
