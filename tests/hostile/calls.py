# SPDX-License-Identifier: Apache-2.0
"""Requests to a server over asyncio's streams, by hand: nothing is retried, and nothing is hidden."""

from __future__ import annotations

import asyncio
import json
from typing import Any

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PATIENCE_S = 60.0
GONE = (ConnectionError, asyncio.IncompleteReadError, OSError)
"""The errors that a caller sees when the other end is gone."""


async def ask(streams: Streams, data: bytes) -> tuple[int, bytes]:
    """Status and body of the answer.

    Raises:
        RuntimeError: there is none within PATIENCE_S.
    """
    streams[1].write(data)
    try:
        return await asyncio.wait_for(_read(streams[0]), PATIENCE_S)
    except asyncio.TimeoutError as error:
        raise RuntimeError(f"no answer within {PATIENCE_S:.0f} s") from error


async def get_status(address: tuple[str, int], path: str, patience_s: float) -> int | None:
    """The status of a GET request; None where no answer came."""
    try:
        streams = await asyncio.wait_for(asyncio.open_connection(*address), patience_s)
    except (*GONE, asyncio.TimeoutError):
        return None
    try:
        streams[1].write(f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        return (await asyncio.wait_for(_read(streams[0]), patience_s))[0]
    except (*GONE, asyncio.TimeoutError):
        return None
    finally:
        streams[1].close()


def post(fields: dict[str, Any], path: str = "/embed") -> bytes:
    """A request."""
    body = json.dumps(fields).encode()
    return f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return int(head.split()[1]), await reader.readexactly(int(head.split(b"content-length: ")[1].split()[0]))
