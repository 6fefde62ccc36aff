# SPDX-License-Identifier: Apache-2.0
"""A connection: how large and slow its heads may be, whether anyone is at its other end, and reads answers."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections import deque
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from . import http2

_Protocol: Any = AutoHTTPProtocol
_IS_PARSED_HERE = hasattr(_Protocol, "on_headers_complete")  # by httptools; h11 has limits of its own

HEAD_BYTES, HEADERS, URL_BYTES = 1 << 16, 100, 1 << 13
"""The most of a request's head; whoever sends more is told so before anything looks at it."""
HEAD_S = 10.0
"""How long a head may take from its first byte, an unread answer without any of it being read, and the rest of a body
after its answer."""
IDLE_S = 75
"""How long a connection may be idle: longer than load balancers keep theirs, so that they close first."""
ENDING_S = 1.0
"""The same for answers when the server ends."""
RESET_S = 0.05
"""How long after a caller stops sending it is checked whether it still takes the answer."""
_CLOSE, _CLOSE_WAIT = 7, 8
"""States of Linux's TCP, the first byte of TCP_INFO: reset, or the other end sends no more."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LARGE = (
    f"the head of the request is too large, allowed: {HEAD_BYTES} bytes, {HEADERS} headers and {URL_BYTES} bytes of URL"
)
_TOO_SLOW = f"the head of the request did not come within {HEAD_S:.0f} s; send it faster"


class Connection(_Protocol):  # type: ignore[misc]
    """What uvicorn makes of a connection, with limits. Endpoints find it in the state of their scope.

    Attributes:
        is_gone: the other end has hung up.
        sharer: its number among those who share the model; 0 before it is asked for.
    """

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        self.is_gone = False
        self.sharer = 0
        self._work: set[asyncio.Task[Any]] = set()
        self._in_head = _IS_PARSED_HERE
        self._head_bytes = 0
        self._head_since = 0.0
        self._refused = False
        self._ends_after_body = False
        self._unread_bytes = 0
        self._unread_since = 0.0
        self._drain_future: asyncio.Future[None] | None = None
        self._sends_no_more, self._may_probe = False, True
        self._cycles: deque[Any] = deque()  # uvicorn's requests and answers, from the one that is answered now
        self._since = time.monotonic()
        self._unasked_since = 0.0  # when a body was first seen of which the answer is sent already; 0: there is none
        if _IS_PARSED_HERE:
            from .upgrades import Parser  # httptools, which not every Python has

            self.parser = Parser(self)

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers that the other end has not taken yet."""
        return 0 if self.is_gone else int(self.transport.get_write_buffer_size())

    def begin(self, work: asyncio.Task[Any]) -> None:
        """A task that is to be cancelled when nobody waits for it any more."""
        self._work.add(work)

    def end(self, work: asyncio.Task[Any]) -> None:
        """The task has done its work."""
        self._work.discard(work)

    async def drain(self) -> None:
        """Waits until the answer is sent, or nobody takes it; until then the request counts as under way."""
        if self.unread_bytes:
            # The next request of a caller that does not wait for answers may wait here, too.
            self._drain_future = self._drain_future or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drain_future)

    def look(self, *, ending: bool) -> int:
        """Ends the connection where it is too slow; returns its unread bytes. Called now and then."""
        self._end_if_reset()
        self._find_end()
        self._probe()
        now, unread_bytes = time.monotonic(), self.unread_bytes
        if unread_bytes != self._unread_bytes or not unread_bytes:
            self._unread_bytes, self._unread_since = unread_bytes, now
        elif now - self._unread_since > (ENDING_S if ending else HEAD_S):
            self.transport.abort()
            return 0
        if self._drain_future is not None and not unread_bytes:
            self._settle()
        self._end_if_unasked(now, ENDING_S if ending else HEAD_S)
        if self.cycle is None and not self._head_bytes and now - self._since > IDLE_S:
            self.transport.close()  # uvicorn looks only at those that have had an answer
        if self._head_bytes and self._in_head and now - self._head_since > HEAD_S and not self._refused:
            self._refuse(408, "Request Timeout", _TOO_SLOW)
        return unread_bytes

    def eof_received(self) -> bool:
        """The other end sends no more: it waits for answers to what it has sent, or has gone; true keeps it open."""
        cycle = self.cycle
        if self._refused or cycle is None or cycle.response_complete or cycle.scope["http_version"] != "1.1":
            return False
        if getattr(cycle, "more_body", True) or not hasattr(self, "pipeline"):  # h11 ends such connections itself
            return False
        self._sends_no_more = True
        cycle.keep_alive = False
        self._probe()
        asyncio.get_running_loop().call_later(RESET_S, self._end_if_reset)
        return True

    def _probe(self) -> None:
        """Writes a provisional answer, once, to who sends no more: whoever has gone resets the connection.

        It comes before an answer: in the middle of one it would be a part of it.
        """
        if not self._sends_no_more or not self._may_probe or self.transport.is_closing():
            return
        cycle = self._cycle_under_way()
        if cycle is not None and not cycle.response_started and cycle.scope["http_version"] == "1.1":
            self._may_probe = False
            self.transport.write(_CONTINUE)

    def _cycle_under_way(self) -> Any:
        """The request that is answered now, before those that wait behind it; None: all have been."""
        while self._cycles and self._cycles[0].response_complete:
            self._cycles.popleft()
        return self._cycles[0] if self._cycles else None

    def end_after(self, cycle: Any) -> None:
        """Ends the connection after an answer, and after what is left of the body that the answer did not wait for.

        The kernel resets a connection that is closed with bytes in it that nobody has read, and whoever still sends
        may then lose the answer: a proxy would report an error of its own, and take the server for broken.
        """
        if cycle is not self.cycle or self._in_head or not cycle.more_body or self.transport.is_closing():
            self.transport.close()
        elif not self._ends_after_body:
            self._ends_after_body = True
            self.transport.write_eof()

    def _end_if_unasked(self, now: float, most_s: float) -> None:
        """Ends the connection where a body goes on for long after its answer, which did not wait for all of it."""
        cycle = self.cycle
        if cycle is None or not cycle.response_complete or self._in_head or not _IS_PARSED_HERE:
            self._unasked_since = 0.0
        elif not self._unasked_since:
            self._unasked_since = now
        elif now - self._unasked_since > most_s:
            self.transport.close()

    def _find_end(self) -> None:
        """Finds out that the other end sends no more while nothing is read, because a second request waits."""
        if self._sends_no_more or not self._work or self.transport.is_closing() or sys.platform != "linux":
            return
        if not getattr(self, "pipeline", None):
            return
        own = self.transport.get_extra_info("socket")
        if own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (_CLOSE, _CLOSE_WAIT):
            self._sends_no_more = True

    def _end_if_reset(self) -> None:
        """Ends a connection that is not read from any more, where the other end has reset it."""
        if self._sends_no_more and not self.is_gone and not self.transport.is_closing():
            own = self.transport.get_extra_info("socket")
            if own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        self.is_gone = True
        self._settle()
        for cycle in self._cycles:  # uvicorn knows the last one alone, and would write what follows on the others
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        for work in self._work:
            work.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """The other end has taken nearly all."""
        super().resume_writing()
        self._settle()

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to a head."""
        if self._refused:
            return
        if self._in_head:
            if not self._head_bytes:
                self._head_since = time.monotonic()
                if data.startswith(http2.PREFACE):
                    self._refuse_http2()
                    return
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self._refused:
            self._refuse(431, "Request Header Fields Too Large", _TOO_LARGE)

    def on_headers_complete(self) -> None:
        """The parser has a whole head."""
        if self._refused:
            return
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_BYTES or len(self.headers) > HEADERS or len(self.url) > URL_BYTES:
            self._refuse(431, "Request Header Fields Too Large", _TOO_LARGE)
        else:
            last = self.cycle
            super().on_headers_complete()
            if self.cycle is not last:
                self._cycle_under_way()  # forgets those before
                self._cycles.append(self.cycle)
                self.cycle.transport = _AnswerTransport(self, self.cycle)

    def on_body(self, body: bytes) -> None:
        """The parser has more of a body."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser has a whole request, and another may begin."""
        if self.parser.skips_body():
            return
        if self._ends_after_body:
            self._refused = True  # whatever follows
            self.transport.close()
        if not self._refused:
            super().on_message_complete()
            self._in_head, self._head_bytes = True, 0
            if not self.pipeline:
                self.flow.resume_reading()  # uvicorn stops at large bodies, and a hang-up would not be seen

    def _refuse(self, status: int, phrase: str, message: str) -> None:
        """Answers what is no request yet, and hangs up."""
        self._refused = True
        head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        transport = cast(asyncio.Transport, self.transport)
        transport.write(f"{head}content-length: {len(message)}\r\nconnection: close\r\n\r\n{message}".encode())
        transport.close()

    def _refuse_http2(self) -> None:
        """Tells a client why it gets no HTTP/2; it may still send, and to close at once could lose the answer."""
        self._refused = True
        transport = cast(asyncio.Transport, self.transport)
        transport.write(http2.goodbye())
        asyncio.get_running_loop().call_later(ENDING_S, transport.close)

    def _settle(self) -> None:
        drain_future, self._drain_future = self._drain_future, None
        if drain_future is not None and not drain_future.done():
            drain_future.set_result(None)


class _AnswerTransport:
    """The transport as uvicorn's answers use it, with another way to end it.

    Args:
        connection: the connection.
        cycle: uvicorn's request and answer.
    """

    def __init__(self, connection: Connection, cycle: Any) -> None:
        self._connection, self._cycle = connection, cycle
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        """Ends the connection in good order."""
        self._connection.end_after(self._cycle)
