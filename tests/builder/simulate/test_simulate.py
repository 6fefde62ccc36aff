# SPDX-License-Identifier: Apache-2.0
"""Traces, replays in simulated time, their figures, and the `padfree costs` and `padfree simulate` commands."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padfree.builder import BuildError
from padfree.builder.cli import main, row_progress
from padfree.builder.simulate.replay import Replay, Run, replay
from padfree.builder.simulate.report import SimulatedServer, contenders, summarise
from padfree.builder.simulate.trace import generate, rate_of, read_trace, stretch, write_trace
from padfree.contract.installation import install_command
from padfree.runtime.batching import Budget, CheapestCut, CostTable, Decision, FirstCome, Waiting, read_costs
from padfree.runtime.batching.measure import CPU_WARM_UP

from tests.support.folders import write_folder

LENGTHS, BATCHES = (100, 500), (1, 10)


def table(interface: str = "packed") -> CostTable:
    """Runs that cost 1 ms plus 0.01 ms per token, with a minimum of 100 tokens."""
    rows = tuple(tuple(1 + length * batch / 100 for batch in BATCHES) for length in LENGTHS)
    return CostTable(interface, LENGTHS, BATCHES, rows)


def arrivals(*at_ms: float, length: int = 100, allowed_ms: float = math.inf) -> list[Waiting]:
    return [Waiting(length, at / 1e3, (at + allowed_ms) / 1e3) for at in at_ms]


def milliseconds(done: Replay) -> list[tuple[list[int], float, float]]:
    return [(run.requests, pytest.approx(1e3 * run.start_s), pytest.approx(1e3 * run.end_s)) for run in done.runs]


def test_runs_follow_each_other_and_take_what_came_meanwhile() -> None:
    done = replay(arrivals(5, 6, 6.5, 30), FirstCome(Budget()), table(), max_waiting=9)
    assert milliseconds(done) == [([0], 5, 7), ([1, 2], 7, 10), ([3], 30, 32)]


def test_a_delay_ends_in_time() -> None:
    policy = FirstCome(Budget(max_sequences=3), max_delay_s=0.004)
    done = replay(arrivals(0, 1, 10, 11, 12), policy, table(), max_waiting=9)
    assert milliseconds(done) == [([0, 1], 4, 7), ([2, 3, 4], 12, 16)]


def test_a_full_queue_refuses_and_late_requests_are_dropped() -> None:
    trace = arrivals(0, 0.1, 0.2, 0.3, 50, allowed_ms=3)
    done = replay(trace, FirstCome(Budget(max_sequences=1), costs=table()), table(), max_waiting=2)
    assert [run.requests for run in done.runs] == [[0], [4]]
    assert (done.refusal_times, done.too_late) == ([3], [1, 2])


def test_a_policy_that_never_runs_anything_is_named() -> None:
    class Idle(FirstCome):
        def decide(self, *_: Any) -> Decision:
            return Decision(())

    with pytest.raises(BuildError, match="Idle runs none of 2 requests"):
        replay(arrivals(0, 1), Idle(Budget()), table(), max_waiting=9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["poisson", "bursts"]), st.booleans(), st.integers(1, 20))
def test_every_request_has_one_fate(seed: int, kind: str, hurried: bool, max_waiting: int) -> None:
    allowed_s = 0.02 if hurried else math.inf
    trace = generate(rate=2000, seconds=0.05, arrivals=kind, deadline_s=allowed_s, seed=seed)
    for name, costs in (("padded", table("padded")), ("packed", table())):
        for contender in contenders({name: costs}, max_batch=None, max_tokens=None, max_delay_s=0.001):
            done = replay(trace, contender.policy, costs, max_waiting=max_waiting)
            answered = [at for run in done.runs for at in run.requests]
            assert sorted(answered + done.refusal_times + done.too_late) == list(range(len(trace)))
            assert all(before.end_s <= after.start_s for before, after in pairwise(done.runs))
            assert all(trace[at].arrived_s <= run.start_s for run in done.runs for at in run.requests)


def test_figures_of_a_replay() -> None:
    trace = arrivals(0, 10, 10, 20, 20)
    done = Replay([Run([0], 0.0, 0.005), Run([1, 2], 0.01, 0.03)], refusal_times=[3], too_late=[4])
    summary = summarise(SimulatedServer("name", FirstCome(Budget()), table("padded")), trace, done)
    assert summary.record() == {
        "contender": "name",
        "offered_rps": pytest.approx(200),
        "answered_rps": pytest.approx(3 / 0.035),
        "refused": 0.2,
        "too_late": 0.2,
        "p50_ms": pytest.approx(20),
        "p99_ms": pytest.approx(20),
        "padding": 0.0,
        "run_requests": 1.5,
        "busy": pytest.approx(25 / 30),
    }


def test_no_more_is_answered_than_was_offered() -> None:
    trace = arrivals(0, 250, 500, 750, 1000)
    done = Replay([Run([at], arrived / 1e3, arrived / 1e3) for at, arrived in enumerate((0, 250, 500, 750, 1000))])
    summary = summarise(SimulatedServer("name", FirstCome(Budget()), table()), trace, done)
    assert summary.offered_rps == pytest.approx(4)
    assert summary.answered_rps == pytest.approx(4)


def test_padding_is_counted_in_slots() -> None:
    trace = [Waiting(length, 0.0) for length in (10, 40, 33)]
    done = Replay([Run([0, 1, 2], 0.0, 1.0)])
    padded = summarise(SimulatedServer("", FirstCome(Budget()), table("padded")), trace, done)
    packed = summarise(SimulatedServer("", FirstCome(Budget()), table()), trace, done)
    assert padded.padding == pytest.approx(1 - 83 / 120)
    assert packed.padding == pytest.approx(1 - 83 / 96), "filler rounds 83 tokens up to a size of a CUDA graph"
    nothing = summarise(SimulatedServer("", FirstCome(Budget()), table()), trace, Replay(refusal_times=[0, 1, 2]))
    assert nothing.p99_ms is None


def test_the_cheapest_cut_beats_plain_batching_where_padding_hurts() -> None:
    trace = generate(rate=5000, seconds=0.5, seed=1)
    budget = Budget(max_sequences=10, counts_padding=True)
    policies = {"plain": FirstCome(budget), "cheapest": CheapestCut(table("padded"), budget)}
    ends = {
        name: replay(trace, policy, table("padded"), max_waiting=10000).runs[-1].end_s
        for name, policy in policies.items()
    }
    assert ends["cheapest"] < 0.7 * ends["plain"]


def test_generated_arrivals_have_their_rate_and_repeat() -> None:
    one, two = (generate(rate=rate, seconds=20, seed=3) for rate in (500, 1000))
    assert rate_of(one) == pytest.approx(500, rel=0.05)
    assert rate_of(two) == pytest.approx(1000, rel=0.05)
    assert [request.length for request in two][: len(one)] == [request.length for request in one]
    assert generate(rate=500, seconds=20, seed=3) == one
    assert generate(rate=500, seconds=20, seed=4) != one


def test_bursts_come_in_a_fifth_of_the_time() -> None:
    trace = generate(rate=1000, seconds=20, arrivals="bursts", seed=0)
    assert rate_of(trace) == pytest.approx(1000, rel=0.05)
    assert all(before.arrived_s <= after.arrived_s for before, after in pairwise(trace))
    assert np.mean([request.arrived_s % 1.0 < 0.2 for request in trace]) == pytest.approx(0.8, abs=0.03)


def test_lengths_follow_their_distribution() -> None:
    short, even = (
        np.array([request.length for request in generate(rate=1000, seconds=10, lengths=name, max_length=256)])
        for name in ("short-skewed", "uniform")
    )
    assert (short.min() >= 1, short.max(), np.median(short)) == (True, 256, pytest.approx(32, rel=0.05))
    assert (even.min(), even.max(), even.mean()) == (1, 256, pytest.approx(128.5, rel=0.03))
    observed = {request.length for request in generate(rate=1000, seconds=1, lengths=[3, 7, 900], max_length=256)}
    assert observed == {3, 7, 256}


def test_a_trace_is_stretched_to_a_rate() -> None:
    trace = stretch(arrivals(10, 20, 30, allowed_ms=5), 50)
    assert rate_of(trace) == pytest.approx(50)
    assert [request.deadline_s - request.arrived_s for request in trace] == pytest.approx([0.005] * 3)
    with pytest.raises(BuildError, match="cannot be stretched"):
        stretch(arrivals(1, 1), 50)


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    trace = [Waiting(4, 0.0105), Waiting(7, 0.02, 0.07)]
    write_trace(tmp_path / "trace.jsonl", trace)
    assert (tmp_path / "trace.jsonl").read_text("utf-8").splitlines() == [
        '{"at_ms": 10.5, "length": 4}',
        '{"at_ms": 20.0, "length": 7, "deadline_ms": 50.0}',
    ]
    assert read_trace(tmp_path / "trace.jsonl") == trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no request"),
        ("{", "line 1: not JSON"),
        ('{"at_ms": 1}', "line 1: .* allowed: an object of at_ms, length"),
        ('{"at_ms": 1, "length": 2, "deadline": 3}', "allowed: an object of at_ms, length"),
        ('{"at_ms": -1, "length": 2}', "allowed: numbers of at least 0"),
        ('{"at_ms": 1, "length": 2.5}', "a whole length"),
        ('{"at_ms": "1", "length": 2}', "allowed: numbers of at least 0"),
        ('{"at_ms": 2, "length": 2}\n{"at_ms": 1, "length": 2}', "line 2: comes before the line above"),
    ],
)
def test_a_damaged_trace_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text, "utf-8")
    with pytest.raises(BuildError, match=message):
        read_trace(path)


@pytest.fixture
def tables(tmp_path: Path) -> list[str]:
    for name in ("packed", "padded"):
        (tmp_path / f"{name}.json").write_text(table(name).to_json(), "utf-8")
    return [str(tmp_path / f"{name}.json") for name in ("packed", "padded")]


def test_simulate_compares_every_policy_at_every_rate(
    tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, saved = tmp_path / "out.jsonl", tmp_path / "trace.jsonl"
    options = ["--rates", "200,400", "--seconds", "0.5", "--json", str(out), "--save-trace", str(saved)]
    assert main(["simulate", *tables, *options]) == 0
    records = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    names = [
        f"{model}, {policy}"
        for model, plain in (("packed", "token budget"), ("padded", "dynamic batching"))
        for policy in ("one by one", plain, "cheapest cut")
    ]
    assert [record["contender"] for record in records] == names * 2
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
    assert main(["simulate", *tables, "--trace", str(saved), "--json", str(out)]) == 0
    again = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [record["p99_ms"] for record in again] == pytest.approx(
        [record["p99_ms"] for record in records[:6]], abs=1e-3
    )


@pytest.mark.parametrize("missing", [True, False])
def test_what_a_picture_lacks_is_said_before_simulating(
    tables: list[str], missing: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    else:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr("padfree.builder.simulate.replay.replay", lambda *_, **__: pytest.fail("simulates"))
    assert main(["simulate", tables[0], "--plot", "plot.png" if missing else "plot.txt"]) == 1
    wanted = f"--plot needs matplotlib; install it with: {install_command('bench')}" if missing else "no picture"
    assert wanted in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_simulate_draws(tables: list[str], tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{suffix}"
    assert main(["simulate", tables[0], "--seconds", "0.2", "--plot", str(path)]) == 0
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rates", "fast"], "--rates is 'fast', allowed: numbers"),
        (["--rates", "0"], "--rates is 0.0, allowed: above 0"),
        (["--seconds", "-1"], "--seconds is -1.0, allowed: above 0"),
        (["--arrivals", "steady"], "--arrivals is 'steady', allowed: poisson, bursts"),
        (["--lengths", "nowhere.txt"], "nowhere.txt: no list of lengths"),
        (["--deadline-ms", "0"], "--deadline-ms is 0, allowed: above 0"),
        (["--max-waiting", "0"], "--max-waiting is 0, allowed: 1 or more"),
        (["--delay-ms", "-1"], "--delay-ms is -1, allowed: 0 or more"),
        (["--delay-ms", "nan"], "--delay-ms is nan, allowed: 0 or more"),
        (["--max-batch", "-2"], "--max-batch is -2, allowed: 1 or more"),
        (["--max-batch", "0"], "--max-batch is 0, allowed: 1 or more"),
        (["--max-tokens", "0"], "--max-tokens is 0, allowed: 1 or more"),
        (["--plot", "plot.txt"], "plot.txt: no picture"),
    ],
)
def test_simulate_refuses_what_means_nothing(
    options: list[str], message: str, tables: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    if "--plot" in options:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", tables[0], "--seconds", "0.1", *options]) == 1
    assert message in capsys.readouterr().err


def test_simulate_refuses_two_tables_of_one_name(tables: list[str], capsys: Any) -> None:
    assert main(["simulate", tables[0], tables[0]]) == 1
    assert "two cost tables have the same name" in capsys.readouterr().err


def test_costs_writes_what_simulate_reads(
    packed_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "costs.json"
    options = ["--lengths", "4,16", "--batches", "1,2", "--repeats", "1"]
    assert main(["costs", str(packed_model()), "-o", str(out), *options]) == 0
    costs = read_costs(out)
    assert (costs.lengths, costs.batches) == ((4, 16), (1, 2))
    assert costs.environment["model"] == "packed.onnx"
    assert {"commit", "python", "onnxruntime"} <= set(costs.environment)
    assert "milliseconds per run, packed" in " ".join(capsys.readouterr().out.split())
    assert main(["costs", str(packed_model()), "-o", str(out), "--lengths", "many"]) == 1
    assert "--lengths is 'many', allowed: whole numbers by commas" in capsys.readouterr().err


def test_costs_say_how_far_they_are(
    packed_model: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_progress, "LINE_S", 0.0)
    command = ["costs", str(packed_model()), "-o", str(tmp_path / "costs.json"), "--lengths", "4,16", "--repeats", "1"]
    assert main([*command, "--batches", "1,2"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 * (CPU_WARM_UP + 1)  # including one at the beginning, but none at the end
    assert all(re.fullmatch(r"\d+ of 8 runs, [\d,]+ tokens/s(, 0:00:\d\d left)?", line) for line in lines)
    assert main([*command, "--batches", "1,2", "--quiet"]) == 0
    assert not capsys.readouterr().err


def test_costs_of_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small")
    options = ["--lengths", "16,32", "--batches", "1,2", "--repeats", "1"]
    assert main(["costs", str(folder), "-o", str(tmp_path / "costs.json"), *options]) == 0
    costs = read_costs(tmp_path / "costs.json")
    assert (costs.lengths, costs.batches) == ((16, 32), (1, 2))
