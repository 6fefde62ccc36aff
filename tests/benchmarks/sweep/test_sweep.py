# SPDX-License-Identifier: Apache-2.0
"""The sweep: its cases, which of them it skips, and which it counts as passed."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.peers.batch import draw_lengths
from padfree.builder.peers.catalog import GPU_PEERS
from padfree.onnx_tools.cost import Lengths

from benchmarks.sweep import cases
from benchmarks.sweep import measurement as sweep


def all_cases() -> list[cases.SweepCase]:
    return [case for group in cases.SETS.values() for case in group]


def test_cases_have_names_of_their_own_and_known_peers() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))
    assert {peer for case in all_cases() for peer in case.peers} <= set(GPU_PEERS)
    alone = ("tokens", "positions", "fp8", "precisions", "decoders", "large")
    assert all(("tensorrt" in case.peers) is (case.set not in alone) for case in all_cases())
    assert all(0 < case.mean <= case.seq_len for case in all_cases())


def draw(case: cases.SweepCase) -> list[int]:
    return draw_lengths(Lengths(case.batch, case.mean, case.seq_len))


def test_the_sets_cover_what_they_say() -> None:
    length = cases.SETS["length"]
    assert sorted(case.seq_len for case in length if case.batch == 1) == list(range(64, 1025, 64))
    assert len(length) == 32
    assert sum("torch-varlen" in case.peers for case in length) == 4
    tokens = [sum(draw(case)) for case in cases.SETS["tokens"]]
    assert tokens == pytest.approx(cases.TOKENS, abs=2)
    of_a_query = draw(cases.SETS["small"][3])
    assert (len(of_a_query), min(of_a_query), max(of_a_query)) == (100, 31, 299)
    fills = sorted(case.mean / 512 for case in cases.SETS["fill"])
    assert fills == pytest.approx([tenth / 10 for tenth in range(1, 11)])


def test_measured_cases_of_this_commit_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    first, second, *_ = cases.SETS["fill"]
    path.write_text("".join(json.dumps({"case": c.name, "commit": k}) + "\n" for c, k in ((first, "a"), (second, "b"))))
    left = sweep.choose(["fill"], sweep.done_cases(path), "a")
    assert first not in left
    assert second in left
    assert sweep.done_cases(tmp_path / "none.jsonl") == set()


def test_a_shared_engine_takes_every_batch_that_it_serves() -> None:
    shared = [(case, case.engine) for case in all_cases() if case.engine is not None]
    assert len({engine for _, engine in shared}) == 3
    for case, engine in shared:
        assert engine.max_batch is not None
        assert engine.max_seq_len is not None
        assert engine.max_tokens is not None
        assert case.batch <= engine.max_batch, case.name
        assert max(draw(case)) <= engine.max_seq_len, case.name
        assert sum(draw(case)) <= engine.max_tokens <= engine.max_batch * engine.max_seq_len, case.name
    assert {case.seq_len for case in cases.SETS["length"] if case.engine is None} == {64, 128}


def test_cases_and_peers_can_be_left_out() -> None:
    left = sweep.choose(["targets", "model"], set(), "a", "large|albert", ("limit", "torch-varlen"))
    assert [(case.set, case.model, case.peers) for case in left] == [
        ("targets", "bert-large", ("torch-varlen", "limit")),
        ("model", "bert-large", ("limit",)),
        ("model", "albert", ("limit",)),
    ]
    assert sweep.choose(["targets"], set(), "a") == list(cases.SETS["targets"])


def test_sets_follow_each_other() -> None:
    assert sweep.choose(["model", "fill"], set(), "a") == [*cases.SETS["model"], *cases.SETS["fill"]]


RECORD: dict[str, Any] = {
    "ours_ms": 1.0,
    "peers_ms": {"TensorRT padded, weakly typed": 2.0, "TensorRT padded, strongly typed": 1.5, "other": 9.0},
    "errors": {"padfree": 3e-3, "PyTorch eager, padded": 2e-3},
    "required_speedup": None,
}


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"required_speedup": 1.5}, True),
        ({"required_speedup": 1.6}, False),
        ({"required_speedup": 1.6, "peers_ms": {}}, False),
        ({"errors": {"padfree": 5e-3, "PyTorch eager, padded": 2e-3}}, False),
        ({"errors": {"padfree": 5e-3}}, True),
    ],
)
def test_what_counts_as_passed(changes: dict[str, Any], passed: bool) -> None:
    assert sweep.is_passed({**RECORD, **changes}) is passed


def test_a_failing_case_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = list(cases.SETS["fill"][:3])

    def measure(case: cases.SweepCase, *_: Any) -> dict[str, Any]:
        if case is chosen[1]:
            raise RuntimeError("no memory")
        return {
            **RECORD,
            "case": case.name,
            "limit_ms": None,
            "seconds": 1.0,
            "unavailable": {"x": "gone"},
            "passed": True,
        }

    monkeypatch.setattr(sweep, "model_reader", lambda _: lambda name, _: name)
    monkeypatch.setattr(sweep, "measure_case", measure)
    monkeypatch.setattr(sweep, "gpu_is_lost", lambda: False)
    options = Namespace(minutes=1.0, models=None, build_only=False)
    assert sweep.run(chosen, tmp_path, options) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("]")[0] for line in lines] == ["[1/3", "[2/3", "[3/3"]
    assert "FAILED: RuntimeError: no memory" in lines[1]
    assert "without x (gone)" in lines[2]
    monkeypatch.setattr(sweep, "gpu_is_lost", lambda: True)
    assert sweep.run(chosen, tmp_path, options) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["this process has lost the GPU: 1 cases left, run again to measure them"]
    assert sweep.run(chosen, tmp_path, Namespace(minutes=-1.0, models=None, build_only=False)) == 1
    assert "3 cases left" in capsys.readouterr().out


def test_an_error_while_closing_does_not_hide_the_first() -> None:
    def fail() -> None:
        try:
            raise RuntimeError("illegal address\nSearch for it")
        finally:
            raise OSError("cannot close")

    with pytest.raises(OSError, match="cannot close") as caught:
        fail()
    assert sweep.explain(caught.value) == "OSError: cannot close; after RuntimeError: illegal address"
