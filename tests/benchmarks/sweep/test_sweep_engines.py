# SPDX-License-Identifier: Apache-2.0
"""Padded engines that are built before a sweep: which ones, by which process, and under the names that it looks for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.peers import engines, padded_engine
from padfree.builder.peers.batch import draw_batch
from padfree.builder.peers.setup import PeerModel, Setup

from benchmarks.sweep import __main__ as command
from benchmarks.sweep import cases
from benchmarks.sweep import measurement as sweep
from benchmarks.sweep.engines import PaddedShape, Part, build_padded, padded_shapes

EVERY_CASE = [case for group in cases.SETS.values() for case in group]


def test_every_engine_is_in_one_part() -> None:
    shapes = padded_shapes(EVERY_CASE)
    assert (
        len(shapes) == len(set(shapes)) == 32 + 1 + 4 + 4 + 6
    )  # over S, the target of BERT-large, other models, small ones, folders
    parted = [shape for number in (1, 2, 3) for shape in shapes[Part(number, 3).slice]]
    assert sorted(map(str, parted)) == sorted(map(str, shapes))
    assert padded_shapes(cases.SETS["tokens"]) == []
    assert padded_shapes(cases.SETS["fill"]) == [PaddedShape("bert-base", 16, 512)]


def test_parts_are_read() -> None:
    assert Part.read("2/3") == Part(2, 3)
    for text in ("0/3", "4/3", "2", "a/b"):
        with pytest.raises(argparse.ArgumentTypeError, match="K from 1 to N"):
            Part.read(text)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of builds that TensorRT would have been asked for; a build with S 64 fails."""
    calls: list[dict[str, Any]] = []

    def build(_: object, plan: Path, **options: Any) -> None:
        if options["max_seq_len"] == 64:
            raise RuntimeError("no engine")
        plan.write_bytes(b"")
        calls.append(options)

    monkeypatch.setattr(padded_engine, "build_padded_engine", build)
    return calls


def test_engines_are_built_where_the_sweep_looks_for_them(
    built: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PeerModel(DEMO_DATA / "bert_tiny.onnx", "fp16")
    lines: list[str] = []

    def build(deadline: float) -> int:
        chosen = [case for case in cases.SETS["length"] if case.batch == 1 and case.seq_len in (64, 128, 256)]
        return build_padded(
            chosen, Part(), read_model=lambda _: model, folder=tmp_path, timing_cache="c", deadline=deadline,
            say=lines.append,
        )  # fmt: skip

    assert build(float("-inf")) == 3
    assert lines == ["time is up: 3 engines left, run again to build them"]
    assert build(float("inf")) == 1
    assert [(item["max_batch"], item["max_seq_len"], item["timing_cache"]) for item in built] == [
        (1, 128, "c"),
        (1, 256, "c"),
    ]
    assert "1x64: FAILED: RuntimeError: no engine" in lines[-1]
    assert build(float("inf")) == 1
    assert len(built) == 2  # existing engines are left alone

    wanted: list[str] = []
    monkeypatch.setattr(engines, "_contender", lambda _, name, *__, **___: wanted.append(name))
    for seq_len in (128, 256):
        engines.padded_contender(Setup(model, draw_batch(model.metadata, [24], seq_len), tmp_path), "weak")
    assert sorted(path.stem for path in tmp_path.glob("*.plan")) == sorted(wanted)


def test_build_only_needs_a_folder_and_measures_nothing(
    built: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = SimpleNamespace(path=Path("m.onnx"), original=None)
    monkeypatch.setattr(sweep, "model_reader", lambda _: lambda *_: model)
    monkeypatch.setattr(sweep, "measure_case", lambda *_: pytest.fail("measured"))
    words = ["sweep", "--sets", "length", "--cases", "1 x (128|256|320|384),", "--build-only"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        command.main()
    assert "--build-only needs --engines" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*words, "--engines", str(tmp_path), "--part", "2/2"])
    assert command.main() == 0
    assert [item["max_seq_len"] for item in built] == [256, 320]
    assert "[2/2] built m_padded_weak_1x320" in capsys.readouterr().out
