# SPDX-License-Identifier: Apache-2.0
"""A few seconds of the attack `python -m tests.hostile`, and what its record says about an attack that failed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.hostile.__main__ import LONG_S, attack, checks
from tests.hostile.attack import WAVE_S
from tests.hostile.tally import Look, Tally, summary, tracebacks

pytest.importorskip("starlette")

SLOW = "one text at a time is answered in time"


def test_nothing_is_wrong_lost_or_crossed_whatever_comes_at_once(tmp_path: Path) -> None:
    tally, log = attack(tmp_path, requests=1500, seconds=15.0, seed=1, spread=True)
    found = summary(tally, log)
    assert found["seconds"] >= WAVE_S  # when the second wave of requests begins
    assert found["wrong"] == []
    assert all(held for name, held in checks(tally, found).items() if name != SLOW), found
    assert found["outcomes"]["200"] > 100
    assert found["outcomes"]["one text: 200"] > 10
    assert found["one_text_ms"]["p90"] < 2000
    assert found["disturbances"]


def test_tracebacks_are_seen() -> None:
    begin = "Traceback (most recent call last):\n"
    unborn = f'{begin}  File "<string>", in <module> spawn_main(...)\nEOFError: Ran out of input\n'
    assert tracebacks(f'a line\n{begin}  File "a.py", line 1\n    call()\nKeyError: 3\nmore\n{unborn}') == [
        "KeyError: 3"
    ]


def looks(*bytes_at: int, kept: int = 2) -> list[Look]:
    return [Look(100.0 * at, (1, size), (kept, size), size) for at, size in enumerate(bytes_at)]


@pytest.mark.parametrize(
    ("tally", "wrong"),
    [
        (Tally(latencies=[0.1]), None),
        (Tally(latencies=[0.1], wrong=["a vector"]), "no answer is wrong"),
        (Tally(latencies=[0.1, 0.9]), "one text at a time"),
        (Tally(latencies=[0.1], outcomes=Counter({"lost": 1})), "no request is lost"),
        (Tally(latencies=[0.1], outcomes=Counter({"lost": 9}), disturbances=Counter({"kill model": 1})), None),
        (Tally(latencies=[0.1], starts=[99.0]), "servers are there again"),
        (Tally(latencies=[0.1], seconds=LONG_S, memory=looks(*range(1000, 1190, 10))), "memory does not grow"),
        (Tally(latencies=[0.1], seconds=LONG_S, memory=looks(*[1000] * 19)), None),
        (Tally(latencies=[0.1], seconds=LONG_S, memory=looks(*[1000] * 19, kept=0)), "memory does not grow"),
    ],
)
def test_a_check_that_failed_is_named(tally: Tally, wrong: str | None) -> None:
    failed = [name for name, held in checks(tally, summary(tally, "")).items() if not held]
    assert len(failed) == (wrong is not None)
    assert all(name.startswith(str(wrong)) for name in failed)
