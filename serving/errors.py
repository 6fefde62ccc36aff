# SPDX-License-Identifier: Apache-2.0
"""What a caller is told when a request is not answered, in the kinds and with the status codes of TEI."""

from __future__ import annotations

VALIDATION, TOKENIZER, BACKEND, OVERLOADED, UNHEALTHY = "Validation", "Tokenizer", "Backend", "Overloaded", "Unhealthy"
"""Kinds of errors, as TEI writes them."""

UNPROCESSABLE, MEDIA_TYPE, TOO_LARGE, TOO_SLOW = 422, 415, 413, 408
FAILED, BUSY, DOWN = 424, 429, 503
WRONG_KEY = 401


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: the HTTP response's.
        kind: one of TEI's.
        label: what /metrics counts the failure as.
        retry_after_s: seconds until another try is worthwhile; None where that is not known.
    """

    def __init__(
        self, status: int, kind: str, message: str, label: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.label = label or kind.lower()
        self.retry_after_s = retry_after_s


def validation_error(message: str) -> ApiError:
    """The error for a request that does not say what is wanted."""
    return ApiError(UNPROCESSABLE, VALIDATION, message)


def tokenizer_error(message: str) -> ApiError:
    """The error for texts, or ids, that do not become what the model takes."""
    return ApiError(UNPROCESSABLE, TOKENIZER, message)


def too_large_error(message: str, label: str = "") -> ApiError:
    """The error for more than the server takes at once."""
    return ApiError(TOO_LARGE, VALIDATION, message, label)


def backend_error(message: str, label: str = "") -> ApiError:
    """The error for a model that does not give what is asked for, or gave nothing."""
    return ApiError(FAILED, BACKEND, message, label)


def busy_error(message: str, retry_after_s: float | None = None) -> ApiError:
    """The error where too much is to be done: the same request may be answered later."""
    return ApiError(BUSY, OVERLOADED, message, retry_after_s=retry_after_s)
