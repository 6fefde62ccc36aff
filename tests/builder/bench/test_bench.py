# SPDX-License-Identifier: Apache-2.0
"""`padfree bench`: batches, comparisons, times in turns, and the whole command on a CPU."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from padfree.builder import BuildError
from padfree.builder.bench import measure as bench
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.profile import ProfileOptions
from padfree.builder.peers import engines
from padfree.builder.peers.batch import MeasuredBatch, draw_batch, draw_lengths, read_lengths
from padfree.builder.peers.catalog import CPU_PEERS, GPU_PEERS
from padfree.builder.peers.contender import Contender, UnavailableError, relative_error
from padfree.builder.peers.setup import PeerModel, Setup
from padfree.contract.metadata import InputInfo
from padfree.onnx_tools.cost import Lengths

from tests.support.pages import page

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[3]
EXPORTED = DEMO_DATA / "bert_tiny.onnx"


@pytest.fixture(scope="module")
def model() -> PeerModel:
    return PeerModel(EXPORTED, "fp32")


@pytest.fixture
def setup(model: PeerModel, tmp_path: Path) -> Setup:
    return Setup(model, draw_batch(model.metadata, [3, 16, 9], 24), tmp_path, timing_cache=None)


@pytest.mark.parametrize("mean", [9.6, 12.8, 32.0, 38.4, 60.0, 64.0])
def test_drawn_lengths_have_the_mean_and_stay_below_the_maximum(mean: float) -> None:
    lengths = draw_lengths(Lengths(200, mean, 64))
    assert np.mean(lengths) == pytest.approx(mean, abs=0.5)  # rounding, and no length below 1
    assert 1 <= min(lengths) <= max(lengths) <= 64
    assert max(lengths) >= 60
    assert lengths == draw_lengths(Lengths(200, mean, 64))
    assert lengths != sorted(lengths) or mean == 64
    assert draw_lengths(Lengths(1, mean, 64)) == [
        max(1, round(64 * 0.5 ** (64 / mean - 1)) if mean < 32 else round(mean))
    ]


def test_random_tokens_are_what_the_model_takes() -> None:
    inputs = [InputInfo("input_ids", "tokens", 12, "int32", excluded=(0, 5)), InputInfo("types", "tokens", 2, "int32")]
    metadata: Any = SimpleNamespace(token_inputs=lambda: inputs, sequence_inputs=list)
    batch = draw_batch(metadata, [400, 0, 100], 512)
    assert set(batch.ragged.tokens["input_ids"]) == set(range(12)) - {0, 5}
    assert set(batch.ragged.tokens["types"]) == {0, 1}
    assert (batch.tokens, batch.slots, batch.seq_lens) == (500, 1536, [400, 0, 100])


def test_padded_peers_get_the_whole_rectangle(setup: Setup) -> None:
    grids = setup.batch.pad(setup.model.original_metadata)
    assert {grid.shape for grid in grids.values()} == {(3, 24)}
    assert grids["attention_mask"].sum(1).tolist() == [3, 16, 9]
    kept = grids["attention_mask"] == 1
    assert (grids["input_ids"][kept] == setup.batch.ragged.tokens["input_ids"]).all()


def test_lengths_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("5 7,9\n12\n")
    assert read_lengths(path) == [5, 7, 9, 12]
    for text in ("5 seven", "", "3 0"):
        path.write_text(text)
        with pytest.raises(BuildError, match=r"lengths\.txt"):
            read_lengths(path)


def test_the_error_is_the_worst_columns() -> None:
    truth = {"hidden": [np.ones((2, 2)), np.ones((1, 2))], "pooled": [np.full(2, 2.0)], "other": [np.ones(1)]}
    answers = {"hidden": [np.ones((2, 2)), np.ones((1, 2))], "pooled": [np.full(2, 2.5)]}
    assert relative_error(answers, truth) == pytest.approx(0.25)
    assert np.isinf(relative_error({"hidden": [np.full((2, 2), np.nan), np.ones((1, 2))]}, truth))
    large = {"logits": [np.asarray([[1.0, 1e9], [-1.0, 1e9]])]}
    assert relative_error({"logits": [np.asarray([[-3.0, 1e9], [3.0, 1e9]])]}, large) == pytest.approx(4)
    with pytest.raises(UnavailableError, match="gives logits, the original hidden, pooled, other"):
        relative_error({"logits": []}, truth)
    with pytest.raises(UnavailableError, match="output 'hidden' has rows of shape"):
        relative_error({"hidden": [np.ones(2)]}, truth)


def fake(answer: float, log: list[str], name: str, time_ms: float = 20.0) -> Callable[[Setup], Contender]:
    """A contender that answers one number and takes the given time."""

    def way(runs: int) -> list[float]:
        log.append(name)
        return [time_ms] * runs

    return lambda _: Contender({"y": [np.array([answer])]}, {"plain": way}, lambda: log.append(f"close {name}"))


def fail(_: Setup) -> Contender:
    raise OSError("libsomething.so:\n cannot be found")


def test_peers_are_checked_then_timed_in_turns_and_failures_are_named(setup: Setup) -> None:
    log: list[str] = []
    truth = {"y": [np.array([1.0])]}
    peers = {
        "good": ("Good", fake(1.0005, log, "good", 40.0)),
        "wrong": ("Wrong", fake(1.5, log, "wrong")),
        "nan": ("NaN", fake(float("nan"), log, "nan")),
        "broken": ("Broken", fail),
        "other": ("Other", lambda _: Contender({"z": []}, {}, lambda: log.append("close other"))),
        "limit": ("Limit", fake(9.0, log, "limit", 5.0)),
    }
    actual = bench._measure(setup, truth, fake(1.0, log, "ours"), peers)
    assert (actual.ours_ms, bench.best(actual.peers["Good"])) == (20.0, 40.0)
    assert actual.limit == bench.Timing(5.0, 0.0)
    assert list(actual.peers) == ["Good"]
    assert actual.unavailable["Wrong"].startswith("wrong answers: they differ by 5.0e-01")
    assert actual.unavailable["Broken"] == "libsomething.so: cannot be found"
    assert actual.unavailable["Other"] == "gives z, the original y"
    assert set(actual.unavailable) == {"Wrong", "NaN", "Broken", "Other"}
    timed = [entry for entry in log if not entry.startswith("close")]
    assert timed[:3] == ["ours", "good", "limit"]
    assert [sorted(timed[at : at + 3]) for at in range(0, len(timed), 3)] == [sorted(timed[:3])] * (1 + bench.ROUNDS)
    assert {entry for entry in log if entry.startswith("close")} == {
        f"close {n}" for n in ("ours", "good", "wrong", "nan", "other")
    }
    record = actual.to_dict()
    assert record["peers_ms"] == {"Good": 40.0}
    assert record["limit_ms"] == 5.0


@pytest.mark.parametrize(("keep", "builds"), [(True, 1), (False, 2)])
def test_an_engine_that_is_kept_is_built_once(
    keep: bool, builds: int, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items: list[Path] = []

    def make(plan: Path) -> dict[str, Any]:
        items.append(plan)
        plan.write_bytes(b"")
        return {}

    prepared = SimpleNamespace(enqueue=lambda: None, download=dict, time_ms=lambda runs: [1.0] * runs)
    backend = SimpleNamespace(prepare=lambda _: prepared, can_capture=False)
    session = SimpleNamespace(backend=backend, close=lambda: None, metadata=setup.model.metadata)
    monkeypatch.setattr(engines, "Session", lambda *_, **__: session)
    monkeypatch.setattr(engines, "split_outputs", lambda *_: {})
    for _ in range(2):
        engines._contender(setup, "some", make, {}, keep=keep).close()
    assert len(items) == builds
    assert (tmp_path / "some.plan").exists() is keep


def test_our_engine_is_tuned_for_the_batch_or_shared(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[dict[str, Any]] = []
    kept: dict[str, bool] = {}

    def contender(_: Setup, name: str, make: Callable[[Path], Any], __: Any, *, keep: bool) -> None:
        kept[name] = keep
        make(setup.folder / name)

    monkeypatch.setattr(engines, "build_engine", lambda *_, **options: built.append(options))
    monkeypatch.setattr(engines, "_contender", contender)
    engines.packed_contender(setup)
    engines.packed_contender(replace(setup, profile=ProfileOptions(max_batch=8, max_seq_len=32, max_tokens=200)))
    keys = ("max_batch", "max_seq_len", "opt_tokens", "max_tokens")
    assert [[options[key] for key in keys] for options in built] == [[3, 24, 28, 72], [8, 32, None, 200]]
    assert kept == {"packed": False, "bert_tiny_packed_8_32_200_None": True}


def test_slow_ways_get_fewer_rounds() -> None:
    log: list[int] = []

    def slow(runs: int) -> list[float]:
        log.append(runs)
        return [6000.0] * runs

    assert bench.time_in_turns({"slow": {"plain": slow}}) == {"slow": {"plain": bench.Timing(6000.0, 0.0)}}
    assert log == [bench.WARM_UP_RUNS] + [1] * 10


def test_turns_come_in_another_order_each_round() -> None:
    log: list[str] = []

    def way(name: str) -> Callable[[int], list[float]]:
        def run(runs: int) -> list[float]:
            log.append(name)
            return [20.0] * runs

        return run

    names = ["a", "b", "c", "d"]
    bench.time_in_turns({name: {"plain": way(name)} for name in names}, rounds=12)
    rounds = [log[at : at + 4] for at in range(4, len(log), 4)]  # after the warm-up
    assert [sorted(names) for names in rounds] == [names] * 12
    before = {a for one in rounds for a, b in itertools.pairwise(one) if b == "a"}
    assert before == {"b", "c", "d"}


def test_wrong_answers_of_ours_end_it(setup: Setup) -> None:
    log: list[str] = []
    with pytest.raises(BuildError, match=r"our answers differ .* by 5\.0e-01 .* nothing was timed"):
        bench._measure(setup, {"y": [np.array([1.0])]}, fake(1.5, log, "ours"), {})
    assert log == ["close ours"]


def test_the_spread_is_that_of_the_tenths() -> None:
    timing = bench.Timing.of([float(value) for value in range(1, 100)])
    assert timing.median_ms == 50
    assert timing.spread == pytest.approx(80 / 50, abs=0.01)


@pytest.mark.parametrize("name", GPU_PEERS)
def test_a_peer_that_is_not_there_says_why(name: str, setup: Setup, gpu_here: bool) -> None:
    if gpu_here:
        pytest.skip("this machine has a GPU")
    half = Setup(PeerModel(EXPORTED, "fp16"), setup.batch, setup.folder)
    with pytest.raises(UnavailableError) as error:
        GPU_PEERS[name].make(half)
    assert len(str(error.value)) > 10


@pytest.fixture(scope="module")
def gpu_here() -> bool:
    try:
        from padfree.runtime.gpu.cuda import device_count
    except Exception:
        return False
    return device_count() > 0


@pytest.mark.slow
def test_bench_on_the_cpu(tmp_path: Path, capsys: Capture) -> None:
    out, lengths = tmp_path / "out.jsonl", tmp_path / "lengths.txt"
    lengths.write_text("4 20 11 8")
    command = ["bench", str(EXPORTED), "--cpu", "--json", str(out)]
    assert main([*command, "--batch", "4", "--seq-len", "32"]) == 0
    assert main([*command, "--lengths", str(lengths)]) == 0
    output = capsys.readouterr().out
    for part in ("padfree", "onnxruntime, original padded", "times padfree's", "43 tokens in 80 slots", "fp32"):
        assert part in output
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert first["case"] == "bert_tiny, 4 x 32, mean 19.25"
    assert first["tokens"] == sum(draw_lengths(Lengths(4, 19.2, 32)))
    assert (second["tokens"], second["slots"], second["limit_ms"]) == (43, 80, None)
    assert set(second) >= {
        "ours_ms",
        "peers_ms",
        "limit_ms",
        "errors",
        "spreads",
        "unavailable",
        "commit",
        "onnxruntime",
    }
    assert list(second["peers_ms"]) == [CPU_PEERS["onnxruntime"].title]
    assert second["errors"]["padfree"] < 1e-5


def test_the_records_keys_are_documented(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["bench", str(EXPORTED), "--cpu", "--batch", "2", "--seq-len", "16", "--json", str(out)]) == 0
    table = page("bench").read_text("utf-8").partition("## As JSON")[2].partition("## Sweeps")[0]
    documented = set(re.findall(r"`(\w+)`", table))
    installed = {"torch", "transformers", "onnxruntime", "onnx", "cuda-bindings", "tensorrt", "triton"}
    record = set(json.loads(out.read_text()))
    assert record - installed <= documented
    assert documented - record <= {"gpu", "cpu", "driver", "fp32", "fp16", "bf16", "fp8", "int8"}


def test_every_peer_is_documented() -> None:
    table = page("bench").read_text("utf-8").partition("## Peers")[2].partition("## Method")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == {*GPU_PEERS, *CPU_PEERS}


def test_bench_names_its_peers(capsys: Capture) -> None:
    assert main(["bench", str(EXPORTED), "--peers", "list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in (*GPU_PEERS, *CPU_PEERS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "nobody"], "--peers nobody: unknown on the CPU, allowed: onnxruntime"),
        (["--seq-len", "600"], "longest sequence 600, allowed: 1..512, what the model takes; pass --seq-len 512"),
        (["--mean", "99", "--seq-len", "64"], "pass --mean 38.4"),
        (["--batch", "0"], "batch of 0 sequences"),
    ],
)
def test_wrong_requests(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["bench", str(EXPORTED), "--cpu", *arguments]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_rewritten_model_has_no_peers(tmp_path: Path, capsys: Capture) -> None:
    packed = tmp_path / "packed.onnx"
    assert main(["optimize", str(EXPORTED), "-o", str(packed), "--no-verify"]) == 0
    assert main(["bench", str(packed), "--cpu"]) == 1
    assert "pass the exported model" in " ".join(capsys.readouterr().err.split())


def test_a_batch_counts_its_tokens() -> None:
    batch = MeasuredBatch(SimpleNamespace(seq_lens=np.array([2, 5], np.int32)), 8)  # type: ignore[arg-type]
    assert (batch.seq_lens, batch.tokens, batch.slots) == ([2, 5], 7, 16)


@pytest.mark.slow
def test_fp8_is_measured_beside_peers_in_half_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scales come from the measured batch; the answers are off by what 3 bits cost, and by no more."""
    out = tmp_path / "out.jsonl"
    command = ["bench", str(EXPORTED), "--cpu", "--batch", "3", "--seq-len", "16", "--precision", "fp8"]
    assert main([*command, "--json", str(out)]) == 0
    record = json.loads(out.read_text())
    assert record["precision"] == "fp8"
    assert 1e-3 < record["errors"]["padfree"] < bench.MAX_ERRORS["fp8"]
    assert "fp8" in capsys.readouterr().out


def test_peers_are_listed_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--peers", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*GPU_PEERS, *CPU_PEERS))
    assert main(["bench", "--peers", "onnxruntime"]) == 1
    assert "give a model to measure" in capsys.readouterr().err
