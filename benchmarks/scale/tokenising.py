# SPDX-License-Identifier: Apache-2.0
"""How many tokens per second one core makes from texts: with the library tokenizers, and by looking words up."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime.text.word_pieces import WordPieces

from ..load.texts import spell, text_of

TEXTS, TOKENS, SECONDS = 2000, 200, 2.0


def core_s(work: Callable[[], Any]) -> float:
    """Seconds of this process's cores for one call, the least of calls for SECONDS, as other programs may run too."""
    times, start = [], time.process_time()
    while time.process_time() - start < SECONDS:
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def measure(tokenizer_file: Path = DEMO_DATA / "tokenizer.json") -> Iterator[dict[str, Any]]:
    """One record for each way."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_padding()
    rng = np.random.default_rng(0)
    words = spell(tokenizer, rng)
    texts = [text_of(TOKENS, words, rng) for _ in range(TEXTS)]
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    shared = {
        "texts": TEXTS,
        "tokens": tokens,
        "bytes_a_token": round(sum(map(len, texts)) / tokens, 3),
        "processor": processor(),
    }
    ways: dict[str, Callable[[], Any]] = {"library": lambda: tokenizer.encode_batch(texts)}
    pieces = WordPieces.of(tokenizer)
    if pieces is not None:
        ways["looked up"] = lambda: pieces.look_up(texts)
    for name, work in ways.items():
        work()
        yield {"case": f"tokenising, {name}", "core_tokens_per_s": round(tokens / core_s(work)), **shared}


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
