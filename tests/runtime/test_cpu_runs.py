# SPDX-License-Identifier: Apache-2.0
"""Batches on a CPU are cut so that one long text does not pad all short ones to its length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session, cpu_runs
from padfree.runtime.cpu_runs import FEW_SLOTS, SLOTS_A_TOKEN, in_groups
from padfree.runtime.onnx_backend import OnnxBackend

from tests.support.folders import ENCODER, VOCABULARY

SAME = 2e-5
"""The tolerance for float32, with products of other shapes."""
SKEWED = [5, 40, 0, 3, 90, 7, 1, 0, 12, 40, 2]


@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 300), max_size=40), most=st.integers(1, 4000))
def test_groups_hold_every_sequence_once_and_little_padding(lengths: list[int], most: int) -> None:
    groups = in_groups(lengths, most)
    assert sorted(at for group in groups for at in group) == list(range(len(lengths)))
    for group in groups:
        slots = len(group) * max(1, *(lengths[at] for at in group))
        tokens = sum(max(1, lengths[at]) for at in group)
        assert len(group) == 1 or slots <= min(most, max(FEW_SLOTS, SLOTS_A_TOKEN * tokens))


def slots_of(run: Mapping[str, Any]) -> int:
    lens = np.diff(run["cu_seqlens"]) if "cu_seqlens" in run else run["seq_lens"]
    return int(lens.size * lens.max(initial=1))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """The feeds that onnxruntime was given."""
    seen: list[Mapping[str, Any]] = []
    once = OnnxBackend._run_once

    def watch(self: OnnxBackend, feeds: Mapping[str, Any]) -> dict[str, Any]:
        seen.append(feeds)
        return once(self, feeds)

    monkeypatch.setattr(OnnxBackend, "_run_once", watch)
    return seen


@pytest.mark.parametrize("interface", ["packed", "varseqlen"])
def test_results_are_those_of_one_run(
    interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[Mapping[str, Any]]
) -> None:
    path = tmp_path / "model.onnx"
    save_model(rewrite(ENCODER, interface=interface).model, path)
    random = np.random.default_rng(5)
    sequences = [random.integers(5, VOCABULARY, size=length) for length in SKEWED]
    packed = np.concatenate(sequences).astype(np.int32)
    filler = 3
    monkeypatch.setattr(cpu_runs, "FEW_SLOTS", 1024)
    with Session(path) as session:
        whole = session.run(sequences)
        together = session.run_packed(np.append(packed, [0] * filler).astype(np.int32), SKEWED, filler_tokens=filler)
        assert len(runs) == 2
        monkeypatch.setattr(cpu_runs, "FEW_SLOTS", 16)
        del runs[:]
        parts = session.run(sequences)
        assert len(runs) > 2
        assert sum(map(slots_of, runs)) <= SLOTS_A_TOKEN * sum(SKEWED) + 16 * len(runs)
        joined = session.run_packed(np.append(packed, [0] * filler).astype(np.int32), SKEWED, filler_tokens=filler)
    for name, rows in whole.items():
        for row, part in zip(rows, parts[name], strict=True):
            np.testing.assert_allclose(part, row, atol=SAME)
        tokens = len(joined[name]) == len(packed) + filler
        live = len(packed) if tokens else len(SKEWED)
        assert joined[name].shape == together[name].shape
        np.testing.assert_allclose(joined[name][:live], together[name][:live], atol=SAME)
        assert not joined[name][live:].any()


def test_one_long_text_costs_no_grid_of_the_short_ones(
    packed_model: Callable[..., Path], runs: list[Mapping[str, Any]]
) -> None:
    batch = [[at % 100] for at in range(3000)]
    batch[1234] = [7] * 16
    with Session(packed_model()) as session:
        rows = session.run(batch)["hidden"]
    assert [row[:, 0].tolist() for row in rows] == batch
    assert 1 < len(runs) < 5
    assert sum(map(slots_of, runs)) < 2 * (len(batch) + FEW_SLOTS)


def test_wide_rows_come_in_smaller_runs(
    packed_model: Callable[..., Path], runs: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_runs, "NUMBERS_A_RUN", 64)  # 32 tokens of a row with two numbers
    with Session(packed_model()) as session:
        session.run([[1] * 16] * 8)
    assert [slots_of(run) for run in runs] == [32] * 4
