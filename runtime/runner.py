# SPDX-License-Identifier: Apache-2.0
"""What a Session and a DevicePool have in common."""

from __future__ import annotations

from typing import Protocol

from padfree.contract.metadata import Metadata

from .budget import Budget
from .request import OutputRows, RaggedBatch


class Runner(Protocol):
    """What answers: a Session, or a DevicePool."""

    @property
    def metadata(self) -> Metadata:
        """The model's inputs, outputs and limits."""

    @property
    def budget(self) -> Budget:
        """What one run takes."""

    def run_ragged(self, ragged: RaggedBatch) -> OutputRows:
        """Runs a checked batch; any number of threads may call it."""
