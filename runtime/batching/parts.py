# SPDX-License-Identifier: Apache-2.0
"""One future for sequences that came together and run apart."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from .future import LightFuture


class Whole(LightFuture):
    """Done when all parts are; the first part that fails fails it, and no other part is run any more.

    Args:
        parts: futures of output name -> one array per sequence, in the order of the sequences.
    """

    def __init__(self, parts: Sequence[Future[Any]]) -> None:
        super().__init__()
        self._parts = parts
        self._parts_left = len(parts)
        self._lock = threading.Lock()
        for part in parts:
            part.add_done_callback(self._part_done)

    def cancel(self) -> bool:
        """Takes all parts out of the queue that do not run yet; False where the answer is there already."""
        if not super().cancel():
            return False
        with suppress(RuntimeError, InvalidStateError):  # another thread has cancelled it, too
            self.set_running_or_notify_cancel()
        self._cancel_parts()
        return True

    def _cancel_parts(self) -> None:
        for part in self._parts:
            part.cancel()

    def _part_done(self, part: Future[Any]) -> None:
        with self._lock:
            self._parts_left -= 1
            last = not self._parts_left
        if self.done() or (part.cancelled() and not last):
            return
        with suppress(InvalidStateError):  # cancelled, or failed, at this moment
            error = None if part.cancelled() else part.exception()
            if error is not None:
                self.set_exception(error)
                self._cancel_parts()
            elif last and not any(one.cancelled() for one in self._parts):
                results = [one.result() for one in self._parts]
                self.set_result({name: [row for some in results for row in some[name]] for name in results[0]})
