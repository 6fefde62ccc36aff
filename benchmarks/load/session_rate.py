# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of a Session without a server, on the texts that servers are asked: what they are measured by."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from padfree.runtime import Session

from .client import Array, Outcome, judge
from .traffic import Request

WARM_UP_S = 1.0


def batches(requests: Sequence[Request], max_tokens: int, max_sequences: int) -> list[list[Array]]:
    """The requests' texts in order of arrival, in batches of at most so many tokens and sequences."""
    found: list[list[Array]] = [[]]
    tokens = 0
    for request in requests:
        for ids, length in zip(request.ids, request.seq_lens[:, 0], strict=True):
            if found[-1] and (tokens + length > max_tokens or len(found[-1]) == max_sequences):
                found.append([])
                tokens = 0
            found[-1].append(ids[:length])
            tokens += int(length)
    return found


def session_rate(
    plan: Path, requests: Sequence[Request], output: str, *, max_tokens: int, max_sequences: int, seconds: float
) -> dict[str, Any]:
    """How fast a Session answers batches that are there already, called by two threads.

    Answers are compared with those of a single text per run for the first batch.

    Returns:
        `tokens_per_s`, `runs`, `tokens_per_run` (mean) and `wrong`, the texts of the first batch whose vector differs.
    """
    runs = batches(requests, max_tokens, max_sequences)
    answered: list[int] = []
    with Session(plan) as session:
        first = session.run(runs[0])[output]
        alone = [session.run([ids])[output][0] for ids in runs[0]]
        pairs = zip(first, alone, strict=True)
        wrong = sum(judge(np.float32(answer), np.float32(expected)) is Outcome.WRONG for answer, expected in pairs)
        begin = time.perf_counter() + WARM_UP_S
        end = begin + seconds

        def call(at: int) -> None:
            while (start := time.perf_counter()) < end:
                batch = runs[at % len(runs)]
                session.run(batch)
                if start >= begin:
                    answered.append(sum(map(len, batch)))
                at += 1

        threads = [threading.Thread(target=call, args=(at * len(runs) // 2,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lasted = time.perf_counter() - begin
    tokens = sum(answered)
    return {
        "tokens_per_s": round(tokens / lasted),
        "runs": len(answered),
        "tokens_per_run": round(tokens / max(1, len(answered))),
        "wrong": wrong,
    }
