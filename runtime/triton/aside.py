# SPDX-License-Identifier: Apache-2.0
"""Large requests of texts, tokenised beside the others instead of in front of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from padfree.contract.machine import cores

from .answers import Failure, Reply
from .texts import Texts, TextTokenizer

LARGE_BYTES = 1 << 14
"""Requests with more text are large: a core needs 20 to 60 ms for so much, and others would wait for it."""
BACKLOG_BYTES = 1 << 23
"""The most that waits; more is refused, as nobody would wait that long. A core tokenises 0.2 to 1 MB per second."""


class Aside:
    """Threads for large requests: half as many as there are cores, so that small requests find the others free."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(max(1, cores() // 2), "padfree-texts")
        self._lock = threading.Lock()
        self._waiting_bytes = 0

    def submit(self, texts: Texts, send: Callable[[Reply], None]) -> None:
        """Answers a request through `send`, later and from another thread, or at once where too much waits."""
        with self._lock:
            # One request is always taken: it could never come in otherwise.
            full = self._waiting_bytes and self._waiting_bytes + texts.size_bytes > BACKLOG_BYTES
            if not full:
                self._waiting_bytes += texts.size_bytes
        if full:
            message = (
                f"{self._waiting_bytes} bytes of long texts wait, allowed: {BACKLOG_BYTES}; try again later, or send "
                "shorter texts"
            )
            send(Failure(message, is_refusal=False, busy=True))
        else:
            self._pool.submit(self._answer, texts, send)

    def close(self) -> None:
        """Answers what waits, and ends the threads."""
        self._pool.shutdown()

    def _answer(self, texts: Texts, send: Callable[[Reply], None]) -> None:
        try:
            answer = self._tokenizer.answer_aside(texts)
        except BaseException as error:
            # A request without an answer never ends: its caller waits, and the model can never be unloaded.
            answer = Failure(f"the texts could not be tokenised: {error!r}", is_refusal=False)
        finally:
            with self._lock:
                self._waiting_bytes -= texts.size_bytes
        send(answer)
