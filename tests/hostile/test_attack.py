# SPDX-License-Identifier: Apache-2.0
"""A few seconds of the attack that `python -m tests.hostile` is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.__main__ import attack, summary, too_many_lost

pytest.importorskip("starlette")


def test_nothing_is_wrong_lost_or_crossed_whatever_comes_at_once(tmp_path: Path) -> None:
    tally, log = attack(tmp_path, requests=1500, seconds=15.0, seed=1)
    found = summary(tally, log)
    assert found["wrong"] == []
    assert found["tracebacks"] == 0
    assert not too_many_lost(tally)
    assert found["outcomes"]["200"] > 100
    assert found["outcomes"]["one text 200"] > 10
    assert found["one_text_ms"]["p90"] < 2000
