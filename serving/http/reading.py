# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests, no larger and no slower than they may be."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import ClientDisconnect, Request

from ..errors import MEDIA_TYPE, TOO_SLOW, VALIDATION, ApiError, too_large_error

BODY_S, BODY_BYTES_A_SECOND = 5.0, 1 << 12
"""A body has this many seconds, and as many more as it takes at this many bytes per second."""


async def read_body(request: Request, most: int, until: float) -> bytes:
    """The body of a request.

    Args:
        request: the request.
        most: bytes that are taken.
        until: time.perf_counter() at which it has taken too long.

    Raises:
        ApiError: it is too large, or too slow; ClientDisconnect: the caller has gone.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    start, is_late = time.perf_counter(), False
    parts: list[bytes] = []
    timer: asyncio.TimerHandle

    def expire() -> None:
        nonlocal is_late, timer
        deadline = start + BODY_S + sum(map(len, parts)) / BODY_BYTES_A_SECOND
        seconds_left = min(until, deadline) - time.perf_counter()
        if seconds_left > 0:
            timer = loop.call_later(seconds_left, expire)
            return
        is_late = True
        task.cancel()

    # As asyncio.timeout, which Python 3.10 lacks; wait_for would make a task for every request.
    timer = loop.call_later(min(BODY_S, until - start), expire)
    try:
        return await _read(request, most, parts)
    except asyncio.CancelledError:
        if not is_late:
            raise
        raise ApiError(TOO_SLOW, VALIDATION, "the body did not come in time; send it faster") from None
    finally:
        timer.cancel()


async def _read(request: Request, most: int, parts: list[bytes]) -> bytes:
    """The body, as large as it may be."""
    coding = request.headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        text = f"the body has the content-encoding '{coding:.60}', allowed: none; send it as it is"
        raise ApiError(MEDIA_TYPE, VALIDATION, text)
    length_header = request.headers.get("content-length", "0")
    if not length_header.isdecimal() or int(length_header) > most:
        raise _body_too_large(most)
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
        if size > most:
            raise _body_too_large(most)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _body_too_large(most: int) -> ApiError:
    return too_large_error(
        f"the body is larger than {most} bytes, the most that is taken; send fewer texts per request"
    )
