# SPDX-License-Identifier: Apache-2.0
"""Off Hopper a build times engines with padfree's GEMMs and TensorRT's, and keeps the fastest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine import build, candidates
from padfree.builder.engine.engine_builder import BuiltEngine
from padfree.builder.engine.measurements import TIE, Measurements, PaddedTime, TimedChoice, TimedRequest, requests_of
from padfree.builder.errors import BuildError
from padfree.runtime import Profile, SessionError
from padfree.runtime.gpu.device import Device

from tests.support.fake_builder import FakeBuilder, fake_builder

Capture = pytest.CaptureFixture[str]
Times = Mapping[str, tuple[float, ...] | str]

BERT = DEMO_DATA / "bert_tiny.onnx"
ADA, HOPPER = Device(0, "NVIDIA L4", 8, 9), Device(0, "NVIDIA H200", 9, 0)
REQUESTS = TimedRequest((100, 50)), TimedRequest((32,))
TIMES: Times = {"folded": (2.0, 0.5), "separate": (3.0, 0.7), "tensorrt": (4.0, 0.9), "padded": (0.6,)}
"""What the stand-in clock says of each engine."""


def name_of(description: Mapping[str, Any]) -> str:
    engine = description["engine"]
    if description["interface"] == "padded":
        return "padded"
    return str(engine["norms"] if engine["linear"] == "padfree" else "tensorrt")


class Bench:
    """Builds on a GPU that is not there: the clock, the builder, and what the last build left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.builder, self.plan = fake_builder(monkeypatch), folder / "model.plan"
        self.times, self.timed = dict(TIMES), list[str]()
        self.refused_number, self.device = 0, ADA
        self.refusal: Exception = BuildError("TensorRT built no engine: out of memory")
        self.error: type[Exception] = SessionError
        original = self.builder.build

        def make(builder: FakeBuilder, model: Any, ranges: Any, **options: Any) -> BuiltEngine:
            builder.device = self.device
            engine = original(builder, model, ranges, **options)
            if len(builder.built) == self.refused_number:
                raise self.refusal
            return engine

        def time_engine(_content: bytes, description: Mapping[str, Any], requests: Any, _device: int) -> Any:
            name = name_of(description)
            self.timed.append(name)
            times = self.times[name]
            if isinstance(times, str):
                raise self.error(times)
            return times[-len(requests) :]

        monkeypatch.setattr(self.builder, "build", make)
        monkeypatch.setattr(candidates, "time_engine", time_engine)
        monkeypatch.setattr(build, "_gpu", lambda _: self.device)

    def build(self, *options: str, precision: str = "fp16") -> dict[str, Any]:
        """Builds the plan; returns the metadata."""
        command = ["build", str(BERT), "-o", str(self.plan), "--precision", precision, "--max-seq-len", "32", *options]
        assert main(command) == 0
        metadata: dict[str, Any] = json.loads(Path(f"{self.plan}.json").read_text("utf-8"))
        return metadata


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    return Bench(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "fastest", ["folded", *(pytest.param(name, marks=pytest.mark.slow) for name in ("separate", "tensorrt"))]
)
def test_the_fastest_engine_is_kept_and_checked(bench: Bench, capsys: Capture, fastest: str) -> None:
    bench.times[fastest] = (1.0, 0.2)
    metadata = bench.build()
    engine = metadata["engine"]
    assert sorted(bench.timed) == ["folded", "padded", "separate", "tensorrt"]
    assert name_of(metadata) == fastest
    number = {"tensorrt": 1, "folded": 2, "separate": 3}[fastest]
    assert bench.plan.read_bytes() == b"plan %d" % number
    assert ("PadfreeLinear" in metadata["plugins"]) == (fastest != "tensorrt")
    assert metadata["check"]["outputs"]
    measured = engine["measured"]
    assert measured["engines"][measured["kept"]]["ms"] == [1.0, 0.2]
    assert [(item["linear"], item["norms"]) for item in measured["engines"]] == list(candidates.CHOICES)
    assert measured["padded"] == {"short_ms": 0.6}
    assert measured["requests"][1] == {"sequences": 1, "tokens": 32}
    assert engine["build_seconds"].keys() >= {"timing of the engines", "TensorRT's build"}
    said = capsys.readouterr()
    assert "measuring on NVIDIA L4" in said.err
    assert f"norms {engine['norms']}, of 3 measured: 1 ms for" in said.out
    assert "packing does not win" not in said.err


@pytest.mark.slow
def test_inspect_shows_what_was_measured(bench: Bench, capsys: Capture) -> None:
    bench.refused_number = 3
    bench.build("-q")
    capsys.readouterr()
    assert main(["inspect", str(bench.plan), "--verbose"]) == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["padfree", "folded", "2", "0.5", "kept"] in rows
    assert ["TensorRT's, padded", "-", "-", "0.6", ""] in rows
    refused = next(row for row in rows if row[:2] == ["padfree", "separate"])
    assert refused[2:4] == ["-", "-"]
    assert refused[4].startswith("TensorRT built no engine")


@pytest.mark.slow
def test_damaged_measurements_are_named(bench: Bench, capsys: Capture) -> None:
    metadata = bench.build("-q")
    metadata["engine"]["measured"]["requests"] = 3
    Path(f"{bench.plan}.json").write_text(json.dumps(metadata), "utf-8")
    capsys.readouterr()
    assert main(["inspect", str(bench.plan), "--verbose"]) == 0
    assert capsys.readouterr().out.count("the measurement of GEMMs and norms is damaged") == 2


@pytest.mark.parametrize("error", [BuildError, pytest.param(RuntimeError, marks=pytest.mark.slow)])
def test_engines_that_fail_are_named_and_left_out(bench: Bench, capsys: Capture, error: type[Exception]) -> None:
    bench.refused_number, bench.refusal = 2, error("TensorRT built no engine: out of memory")
    bench.times["separate"] = "an illegal access"
    metadata = bench.build()
    assert name_of(metadata) == "tensorrt"
    problems = [item.get("problem", "") for item in metadata["engine"]["measured"]["engines"]]
    assert problems == ["TensorRT built no engine: out of memory", "an illegal access", ""]
    assert "norms folded: not measured: TensorRT built no engine: out of memory" in capsys.readouterr().err


@pytest.mark.parametrize("error", [SessionError, pytest.param(RuntimeError, marks=pytest.mark.slow)])
def test_nothing_can_be_timed(bench: Bench, error: type[Exception]) -> None:
    bench.error = error
    for name in bench.times:
        bench.times[name] = "no clock"
    metadata = bench.build()
    assert name_of(metadata) == "tensorrt"
    assert metadata["engine"]["measured"]["kept"] is None
    assert metadata["engine"]["measured"]["padded"] == {"problem": "no clock"}


@pytest.mark.slow
def test_both_times_are_said_where_packing_does_not_win(bench: Bench, capsys: Capture) -> None:
    bench.times["padded"] = (0.45,)
    bench.build()
    assert "for one text of 32 tokens, packing does not win on this GPU: 0.5 ms, and 0.45 ms in TensorRT's engine" in (
        " ".join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    ("device", "options", "choice"),
    [
        (HOPPER, [], "folded"),
        (ADA, ["--no-measure"], "tensorrt"),
        (ADA, ["--linear", "padfree", "--norms", "separate"], "separate"),
        pytest.param(ADA, ["--linear", "tensorrt"], "tensorrt", marks=pytest.mark.slow),
        pytest.param(ADA, ["--linear", "padfree"], "folded", marks=pytest.mark.slow),
    ],
)
def test_one_engine_is_built_where_nothing_is_to_be_measured(
    bench: Bench, device: Device, options: list[str], choice: str
) -> None:
    bench.device = device
    metadata = bench.build(*options)
    assert (name_of(metadata), bench.timed, len(bench.builder.built)) == (choice, [], 1)
    assert "measured" not in metadata["engine"]


@pytest.mark.slow
def test_hopper_measures_where_it_is_asked_to(bench: Bench) -> None:
    bench.device = HOPPER
    bench.times["tensorrt"] = (1.0, 0.2)
    metadata = bench.build("--measure")
    assert (name_of(metadata), len(bench.timed)) == ("tensorrt", 4)


@pytest.mark.slow
def test_separate_norms_leave_folded_ones_out(bench: Bench) -> None:
    metadata = bench.build("--norms", "separate")
    assert name_of(metadata) == "separate"
    assert sorted(bench.timed) == ["padded", "separate", "tensorrt"]


def test_precisions_without_a_choice_are_not_measured(bench: Bench) -> None:
    assert name_of(bench.build(precision="fp32")) == "tensorrt"
    assert bench.timed == []


def measurements(times: Mapping[str, tuple[float, float]], padded: float | None = None) -> Measurements:
    named = tuple(TimedChoice("padfree", name, pair) for name, pair in times.items())
    return Measurements(REQUESTS, named, PaddedTime(padded))


def test_ties_go_to_the_first() -> None:
    nearly, clearly = 1 - TIE / 2, 1 - 2 * TIE
    assert measurements({"a": (1.0, 1.0), "b": (nearly, nearly)}).best() == 0
    assert measurements({"a": (1.0, 1.0), "b": (clearly, clearly)}).best() == 1


def test_both_requests_count_alike() -> None:
    assert measurements({"a": (10.0, 0.1), "b": (15.0, 0.06)}).best() == 1
    assert measurements({"a": (10.0, 0.1), "b": (18.0, 0.06)}).best() == 0


def test_a_short_text_is_not_slower_than_padded_where_that_can_be() -> None:
    times = {"a": (10.0, 0.6), "b": (18.0, 0.5)}
    assert measurements(times, padded=0.55).best() == 1
    assert measurements(times, padded=0.55).warning() == ""
    assert measurements(times, padded=0.4).best() == 0
    assert "0.6 ms, and 0.4 ms" in measurements(times, padded=0.4).warning()


@pytest.mark.parametrize(
    ("profile", "tokens", "count"),
    [
        (Profile(1, 4802, 8192, 16, 512), 4802, 16),
        (Profile(1, 9830, 16384, 32, 512), 9830, 32),
        (Profile(1, 8, 8, 1, 8), 8, 1),
        (Profile(1, 1, 40, 4, 16), 1, 1),
        (Profile(1, 40, 40, 40, 16), 40, 4),
    ],
)
def test_requests_fit_the_profile(profile: Profile, tokens: int, count: int) -> None:
    typical, short = requests_of(profile)
    assert len(typical.seq_lens) == count
    assert sum(typical.seq_lens) == pytest.approx(tokens, rel=0.03)
    assert sum(typical.seq_lens) <= profile.max_tokens
    assert max(typical.seq_lens) <= profile.max_seq_len
    assert short.seq_lens == (min(128, profile.max_seq_len),)
