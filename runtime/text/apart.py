# SPDX-License-Identifier: Apache-2.0
"""Tokens made in a process that may be ended, for tokenizers whose time or memory may explode with a text."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from ..errors import SessionError
from .apart_process import read_message, seconds_for, write_message
from .hazards import slow_pattern

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Text = str | tuple[str, str]
_WAIT = 20
"""A text may take this many times its seconds of processor time, as others may use the processor."""


def count_characters(text: Text) -> int:
    """The characters of a text, or of both texts of a pair."""
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


class TextError(SessionError):
    """A text of which a tokenizer makes no tokens.

    Attributes:
        text: its index among the texts that were given.
    """

    def __init__(self, text: int, reason: str) -> None:
        self.text, self.reason = text, reason
        super().__init__(f"text {text}: {reason}")


@dataclass(frozen=True)
class TextRow:
    """Tokens of a text.

    Attributes:
        ids: its tokens' ids.
        types: its tokens' types.
        cut: whether it was longer.
        ends_special: whether a special token ends it.
    """

    ids: list[int]
    types: list[int]
    cut: bool
    ends_special: bool


class Apart:
    """Makes tokens in a process of its own, which is started where there is none. Threads may share one.

    Args:
        tokenizer: what the process gets a copy of.
        why: what in it may take long, for messages.
    """

    def __init__(self, tokenizer: Tokenizer, why: str) -> None:
        self._content, self._why = tokenizer.to_str(), why
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Apart | None:
        """None if the tokenizer's time grows in proportion to the text, so that it needs no process."""
        why = slow_pattern(tokenizer)
        return None if why is None else cls(tokenizer, why)

    def rows(self, texts: Sequence[Text], most: int | None, side: str) -> list[TextRow]:
        """Tokens of texts, cut to `most`.

        Raises:
            TextError: a text takes too much time or memory, or the tokenizer gives up.
        """
        with self._lock:
            process = self._running()
            try:
                write_message(_pipe(process.stdin), {"texts": texts, "most": most, "side": side})
            except BrokenPipeError:
                self._end()
                raise SessionError("the process that makes tokens has ended; try again") from None
            return [self._row(process, at, text) for at, text in enumerate(texts)]

    def _row(self, process: subprocess.Popen[bytes], at: int, text: Text) -> TextRow:
        seconds = seconds_for(count_characters(text))
        try:
            if not _readable(process, seconds * _WAIT):
                raise EOFError
            answer: Any = read_message(_pipe(process.stdout))
        except EOFError:
            status = self._end()
            slow = status in (-signal.SIGXCPU, -signal.SIGKILL)
            bound = f"{seconds} s of a processor's time" if slow else "the memory that it may have"
            raise TextError(
                at,
                f"the tokenizer takes more than {bound}, due to {self._why}; send a shorter text, or use another "
                "tokenizer",
            ) from None
        if isinstance(answer, dict):
            self._end()  # what it has still to say is about other texts
            raise TextError(at, f"the tokenizer gives up ({answer['error']}), due to {self._why}; send another text")
        return TextRow(*answer)

    def _running(self) -> subprocess.Popen[bytes]:
        """The process of this process: a fork has none."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._owner = os.getpid()
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "TOKENIZERS_PARALLELISM": "false",
            }
            command = [sys.executable or "python3", "-m", f"{__package__}.apart_process"]
            self._process = subprocess.Popen(
                command,
                bufsize=0,  # nothing lies in a buffer where `select` does not see it
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            write_message(_pipe(self._process.stdin), {"tokenizer": self._content})
        return self._process

    def _end(self) -> int:
        """Ends the process, and says how it ended."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for _ in range(20):  # it may be on its way
            if process.poll() is not None:
                break
            time.sleep(0.05)
        process.kill()
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return status

    def __del__(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._end()


def _readable(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process says something, or ends, in so many seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(_pipe(process.stdout), selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _pipe(end: IO[bytes] | None) -> BinaryIO:
    assert end is not None
    return cast("BinaryIO", end)
