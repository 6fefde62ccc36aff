# SPDX-License-Identifier: Apache-2.0
"""The process of `apart`: makes tokens of one text after the other, under a bound of time and memory for each.

It reads messages of JSON, of which a number of 8 bytes says how long they are: first {"tokenizer": ...}, then
{"texts": [...], "most": ..., "side": ...}. For every text it writes one: [ids, types, whether it was cut, whether a
special token ends it], or {"error": ...}.
"""

from __future__ import annotations

import json
import math
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")
SECONDS, CHARACTERS_A_SECOND = 5, 50_000
"""Seconds of processor time for a text of any length; a longer one gets a second more for so many characters."""
MEMORY, MEMORY_A_CHARACTER = 1 << 30, 2 << 10
"""Bytes for a text of any length, and for each character beside them."""


def read_message(source: BinaryIO) -> Any:
    """The next message; EOFError where there is none."""
    (length,) = LENGTH.unpack(_read(source, LENGTH.size))
    return json.loads(_read(source, length))


def _read(source: BinaryIO, length: int) -> bytes:
    """So many bytes, which may come in parts."""
    data = bytearray()
    while len(data) < length:
        more = source.read(length - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def write_message(target: BinaryIO, content: Any) -> None:
    """Sends a message."""
    message = json.dumps(content).encode()
    rest = memoryview(LENGTH.pack(len(message)) + message)
    while rest:
        rest = rest[target.write(rest) :]
    target.flush()


def seconds_for(characters: int) -> int:
    """The processor time that a text of so many characters may take."""
    return SECONDS + characters // CHARACTERS_A_SECOND


def _bound(characters: int, memory: int) -> None:
    """Sets limits, beyond which the system ends the process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(usage.ru_utime + usage.ru_stime) + seconds_for(characters)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    most = memory + MEMORY + MEMORY_A_CHARACTER * characters
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _memory() -> int:
    """Bytes of address space that the process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def _row(tokenizer: Any, text: Any) -> Any:
    try:
        (encoding,) = tokenizer.encode_batch([tuple(text) if isinstance(text, list) else text])
    except BaseException as error:  # a panic of the library is no Exception
        return {"error": str(error)}
    ends = bool(encoding.special_tokens_mask and encoding.special_tokens_mask[-1])
    return [encoding.ids, encoding.type_ids, bool(encoding.overflowing), ends]


def main() -> int:
    """The process; it ends where nobody asks any more."""
    from tokenizers import Tokenizer

    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tokenizer = Tokenizer.from_str(read_message(source)["tokenizer"])
    memory = _memory()
    while True:
        try:
            message = read_message(source)
        except EOFError:
            return 0
        if message["most"] is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(message["most"], direction=message["side"])
        for text in message["texts"]:
            _bound(len(text) if isinstance(text, str) else sum(map(len, text)), memory)
            write_message(target, _row(tokenizer, text))


if __name__ == "__main__":
    sys.exit(main())
