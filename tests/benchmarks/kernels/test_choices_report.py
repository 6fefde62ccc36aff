# SPDX-License-Identifier: Apache-2.0
"""Which tilings a build chooses, by measuring few products."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kernels.choices_report import choose, kind_of, table


def choice(tokens: int, parts: int = 1) -> int:
    return tokens | 1 << 16 | 1 << 20 | parts << 24


def record(times_us: dict[int, float], first: list[int], **changes: Any) -> dict[str, Any]:
    gemm = {"activation": "gelu", "norms": ["x"], "adds": False, "gated": False, "rotary_features": 0, "results": []}
    return {**gemm, "times_us": {str(key): us for key, us in times_us.items()}, "first": first, **changes}


def test_kinds() -> None:
    assert [kind_of(choice(64, parts)) for parts in (1, 2, 4, 0)] == ["64", "64 shared", "64 shared", "64 resident"]


def test_a_build_takes_the_fastest_of_the_models_first_five() -> None:
    first = [choice(tokens) for tokens in (256, 240, 224, 208, 192, 176)]
    times = dict(zip(first, (9.0, 8.0, 10.0, 11.0, 12.0, 5.0), strict=True))
    one = choose(record(times, first))
    assert (one.epilogue, one.kind) == ("fp16 gelu norms x", "240")
    assert one.lost == pytest.approx(5 / 8 - 1)  # the sixth is faster, but no build tries it


def test_the_table_counts_by_epilogue_and_kind() -> None:
    first = [choice(64), choice(32, 2)]
    records = [record({first[0]: 4.0, first[1]: 5.0}, first), record({first[0]: 4.0, first[1]: 6.0}, first)]
    records.append(record({first[0]: 4.0, first[1]: 2.0}, first, results=["y"], gated=True))
    heading, *lines = table(records).splitlines()
    assert "without it" in heading
    assert [line.split() for line in lines] == [
        ["e4m3", "gelu", "gated", "norms", "x", "to", "y", "32", "shared", "1", "100.0", "%", "100.0", "%"],
        ["fp16", "gelu", "norms", "x", "64", "2", "37.5", "%", "50.0", "%"],
    ]
