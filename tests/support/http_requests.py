# SPDX-License-Identifier: Apache-2.0
"""Requests that tests send over plain connections."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from .served_models import Server

PATIENCE_S = 60.0


def post(
    server: Server, path: str, *, raw: bytes | None = None, key: str | None = None, **fields: Any
) -> tuple[int, Any]:
    """Sends fields as JSON, or a raw body; returns status and body."""
    return _request(server, "POST", path, json.dumps(fields).encode() if raw is None else raw, key)


def whole(server: Server, path: str, **fields: Any) -> tuple[dict[str, str], Any]:
    """The headers and the body of an answer."""
    connection = HTTPConnection(*server.address, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, json.dumps(fields).encode())
        answer = connection.getresponse()
        return dict(answer.headers), json.loads(answer.read())
    finally:
        connection.close()


def get(server: Server, path: str, key: str | None = None) -> tuple[int, Any]:
    """Returns status and body, parsed if it is JSON."""
    return _request(server, "GET", path, None, key)


def _request(server: Server, method: str, path: str, body: bytes | None, key: str | None) -> tuple[int, Any]:
    connection = HTTPConnection(*server.address, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        content = answer.read().decode()
        return answer.status, json.loads(content) if content.startswith(("{", "[")) else content
    finally:
        connection.close()
