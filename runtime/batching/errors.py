# SPDX-License-Identifier: Apache-2.0
"""Why a Batcher did not serve a request that was otherwise right."""

from __future__ import annotations

from padfree.runtime.errors import SessionError


class BatchingError(SessionError):
    """A request that fits the model and was still not served."""


class QueueFullError(BatchingError):
    """Too much waits already; nothing was queued.

    Attributes:
        retry_after_s: seconds until there is room, at the model's rate; None where that is not known.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineError(BatchingError):
    """The answer cannot be there in time; nothing was run."""


class ClosedError(BatchingError):
    """The batcher is closed."""
