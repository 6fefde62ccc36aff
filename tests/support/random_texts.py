# SPDX-License-Identifier: Apache-2.0
"""Random texts from all of Unicode, including characters that tokenizers treat differently at the edges of texts."""

from __future__ import annotations

import unicodedata

import numpy as np

_CODES = [code for code in range(0x30000) if not 0xD800 <= code < 0xE000]
_MARKS = [code for code in _CODES if unicodedata.combining(chr(code))]
_POOLS = (_CODES, _MARKS, range(0x20, 0x7F), range(0x80, 0x250), range(0x900, 0xE00), range(0x4DF0, 0x5000))
_BITS = ("[CLS]", "[SEP]", "[mask]", "[MASK]", "[MA", "##s", "don't", "3.5", " \t\r\n ", "\u3000", "\0", "\ufffd", "İ")
_WORDS = ("the", "cat", "sat", "on", "mats", "running", "unknowable", "x" * 100, "x" * 101, "Ünïcödé", "e\u0323\u0301")


def random_text(rng: np.random.Generator, pieces: int = 12) -> str:
    """Up to `pieces` words, characters of any kind, and special tokens."""
    text = ""
    for _ in range(rng.integers(0, pieces + 1)):
        kind = rng.random()
        if kind < 0.5:
            text += f"{_WORDS[rng.integers(len(_WORDS))]} "
        elif kind < 0.7:
            text += _BITS[rng.integers(len(_BITS))]
        else:
            pool = _POOLS[rng.integers(len(_POOLS))]
            text += "".join(chr(pool[at]) for at in rng.integers(0, len(pool), rng.integers(1, 6)))
    return text
