# SPDX-License-Identifier: Apache-2.0
"""Requests that ask for another protocol, such as HTTP/2 or WebSocket, are read and answered in HTTP/1.1.

Servers may ignore `Upgrade`, and clients that prefer HTTP/2, such as Java's, send it with every request. httptools
stops after the head of such a request, without its body; here another parser reads on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser

END_HEADERS = (b"content-length", b"transfer-encoding")
"""The headers that tell where a body ends."""


class Parser(HttpRequestParser):
    """A parser that reads on after a request for another protocol.

    Args:
        connection: uvicorn's; another parser takes the place of its own where this one stops.
        calls: what is told about what is parsed; None: the connection.
    """

    def __init__(self, connection: Any, calls: Any = None) -> None:
        super().__init__(calls or connection)
        self._connection = connection
        with suppress(AttributeError):  # as uvicorn does, where httptools has it
            self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        """Parses more; errors are those of httptools."""
        try:
            super().feed_data(data)
        except HttpParserUpgrade as stop:
            self._read_on(bytes(data)[stop.args[0] :])

    def skips_body(self) -> bool:
        """Whether the last head is one after which the parser stops, and has a body, which the next parser reads."""
        return bool(self.should_upgrade() and self._end_lines())

    def _end_lines(self) -> list[bytes]:
        """The lines of the last head that tell where its body ends."""
        headers = self._connection.headers
        return [name + b": " + value + b"\r\n" for name, value in headers if name in END_HEADERS]

    def _read_on(self, data: bytes) -> None:
        """Has another parser read what follows the head."""
        lines = self._end_lines()
        parser = Parser(self._connection, _AfterHead(self._connection) if lines else None)
        self._connection.parser = parser
        if lines:
            parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        if data:
            parser.feed_data(data)


class _AfterHead:
    """Gets what is parsed: first a head that the connection has had already, and only then what is for it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_past_head = False
        self.on_body = connection.on_body
        self.on_message_complete = connection.on_message_complete

    def on_message_begin(self) -> None:
        if self._is_past_head:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_past_head:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_past_head:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_past_head:
            self._connection.on_headers_complete()
        self._is_past_head = True
