# SPDX-License-Identifier: Apache-2.0
"""What clients get that begin with HTTP/2 without asking (prior knowledge), as gRPC does: RFC 9113's way to say no."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
"""The first bytes of such a connection, in which an HTTP/1.1 server can see a request."""
_SETTINGS, _GOAWAY = 4, 7
_HTTP_1_1_REQUIRED = 0xD
ADVICE = (
    "this server speaks HTTP/1.1 alone; send HTTP/1.1, or put a proxy in front that speaks HTTP/2 with clients, such "
    "as nginx or Envoy"
)


def goodbye() -> bytes:
    """The server's settings, and the end of the connection with its reason, which clients show."""
    reason = struct.pack(">II", 0, _HTTP_1_1_REQUIRED) + ADVICE.encode("ascii")
    return _frame(_SETTINGS, b"") + _frame(_GOAWAY, reason)


def _frame(kind: int, payload: bytes) -> bytes:
    """A frame of stream 0, without flags."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, 0, 0) + payload
