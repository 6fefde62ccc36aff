# SPDX-License-Identifier: Apache-2.0
"""Logs that texts were cut, in at most one line per second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from padfree.contract.texts import RIGHT
from padfree.runtime.text import ServedModel

BETWEEN_LINES_S = 1.0


class CutLog:
    """Counts texts that lost an end, and logs how many those were.

    Args:
        served_model: the model.
        log: writes a line.
    """

    def __init__(self, served_model: ServedModel, log: Callable[[str], object]) -> None:
        self._served_model, self._log = served_model, log
        self._texts = 0
        self._quiet: asyncio.TimerHandle | None = None

    def add(self, texts: int) -> None:
        """Counts texts of one request, and logs them now, or with those that follow within a second."""
        self._texts += texts
        if self._quiet is None:
            self._tell()

    def _tell(self) -> None:
        self._quiet = None
        if not self._texts:
            return
        end = "ends" if self._served_model.tokenizer.truncation_side == RIGHT else "beginnings"
        self._log(
            f"texts of more than {self._served_model.max_length} tokens that lost their {end}: {self._texts}; callers "
            "find 'truncated' in the answer, or x-truncated-texts in its headers"
        )
        self._texts = 0
        self._quiet = asyncio.get_running_loop().call_later(BETWEEN_LINES_S, self._tell)
