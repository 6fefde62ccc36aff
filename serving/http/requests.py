# SPDX-License-Identifier: Apache-2.0
"""What is done with every request, whatever its route: it gets an id, and a line in the access log."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..access_log import AccessLog

ID_HEADER = "x-request-id"
_ID_HEADER = ID_HEADER.encode()
_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)
"""Callers' ids that are kept; others are replaced, because ids are written into logs."""
HUNG_UP = 499
"""The status of requests whose callers hung up; it is only in the access log."""
MOST_PATH = 200  # characters of a path in the log


@dataclass(eq=False)
class Note:
    """What a route says about a request for the access log.

    Attributes:
        id: the request's.
        texts: how many it has.
        tokens: how many tokens of them the model read.
        truncated: how many of the texts lost an end.
        key: the number of its API key, from 1, where the server has several.
        error: what /metrics counts it as, where it failed.
    """

    id: str
    texts: int | None = None
    tokens: int | None = None
    truncated: int | None = None
    key: int | None = None
    error: str | None = None


def note_of(scope: Scope) -> Note:
    """The note of a request; routes add to it."""
    entry: Note = scope["state"]["noted"]
    return entry


class Requests:
    """An ASGI application around all routes.

    Args:
        app: the routes.

    Attributes:
        log: the access log, once there is one.
        is_leaving: whether the server ends soon; answers then ask callers to connect anew, which leads them elsewhere.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.log: AccessLog | None = None
        self.is_leaving = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _id(scope)
        note = scope["state"]["noted"] = Note(request_id)
        start, status, size = time.perf_counter(), HUNG_UP, 0

        async def send_with_id(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (_ID_HEADER, request_id.encode())]
                if self.is_leaving:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            elif scope["method"] != "HEAD":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self.log is not None:
                self.log.add(_line(scope, note, status, size, time.perf_counter() - start))


def _id(scope: Scope) -> str:
    """The caller's own id, as proxies give them, or a new one."""
    for name, value in scope["headers"]:
        if name == _ID_HEADER and _ID.fullmatch(value):
            return str(value.decode("ascii"))
    return uuid4().hex


def _line(scope: Scope, note: Note, status: int, size: int, seconds: float) -> bytes:
    """A request's line of the access log, as JSON; it has neither texts nor keys."""
    client = scope.get("client")
    entry: dict[str, Any] = {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "id": note.id,
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"][:MOST_PATH],
        "status": status,
        "seconds": round(seconds, 6),
        "bytes": size,
        "texts": note.texts,
        "tokens": note.tokens,
        "truncated": note.truncated,
        "key": note.key,
        "error": note.error,
    }
    return orjson.dumps({name: value for name, value in entry.items() if value is not None})
