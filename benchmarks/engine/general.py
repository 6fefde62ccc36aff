# SPDX-License-Identifier: Apache-2.0
"""Engines with the kernels for GPUs other than Hopper, on a Hopper, beside TensorRT's GEMMs and padded TensorRT.

    export PADFREE_LIBRARY=build-ptx/libpadfree.so  # of -D PADFREE_PTX=90 -D PADFREE_CUDA_ARCHITECTURES=80
    python -m benchmarks.engine.general --json benchmarks/results/h200/general.jsonl

padfree: all GEMMs by its own kernels, which a build measures as it does on such a GPU; TensorRT GEMMs: those of packed
tokens by TensorRT, everything else the same; sm_80 GEMMs: the same with TensorRT's kernels for Ampere alone. All
engines are built first, `--workers` at a time, while this process computes the right answers; then it checks the
engines of each case and times them in turns. Launches do not overlap, as on those GPUs.
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from padfree.builder import build_engine
from padfree.builder.bench.measure import MAX_ERRORS, best, time_in_turns, truth_of
from padfree.builder.engine.engine_builder import EngineBuilder, TacticOptions
from padfree.builder.engine.linear import PADFREE, TENSORRT
from padfree.builder.lengths import choose_lengths
from padfree.builder.peers.batch import draw_batch, draw_lengths
from padfree.builder.peers.contender import Answers, Contender, relative_error
from padfree.builder.peers.engines import contender_of
from padfree.builder.peers.padded_engine import build_padded_engine
from padfree.builder.peers.setup import PeerModel, Setup

from benchmarks.command import keep

from ..sweep.cases import FILL
from ..sweep.measurement import model_reader

OWN, SM80, OTHER, PADDED = VARIANTS = ("padfree", "sm_80 GEMMs", "TensorRT GEMMs", "padded TensorRT")
SECONDS_FOR_ONE = 240
Result = TypeVar("Result")


@dataclass(frozen=True)
class Case:
    """A model and a batch, and the variants beside padfree's own."""

    model: str
    batch: int
    seq_len: int
    precision: str
    variants: tuple[str, ...]

    @property
    def name(self) -> str:
        """The case's name in records and files."""
        return f"{self.model}, {self.batch} x {self.seq_len}, {self.precision}"

    @property
    def mean(self) -> float:
        """The mean length; a batch of one sequence has no padding."""
        return self.seq_len if self.batch == 1 else FILL * self.seq_len


CASES = (
    Case("bert-base", 1, 128, "fp16", VARIANTS),
    Case("bert-base", 16, 512, "fp16", VARIANTS),
    Case("bert-base", 16, 128, "fp16", VARIANTS),
    Case("bert-base", 16, 512, "int8", (OWN,)),
    Case("minilm", 16, 512, "fp16", VARIANTS),
    Case("minilm", 1, 32, "fp16", VARIANTS),
    Case("modernbert", 16, 512, "fp16", (OWN, SM80, OTHER)),
    Case("qwen3-0.6b", 16, 512, "bf16", (OWN, SM80, OTHER)),
)


@dataclass(frozen=True)
class Reference:
    """What the engines of a case are checked with."""

    setup: Setup
    right: Answers


class AmpereBuilder(EngineBuilder):
    """TensorRT's builder with the kernels that run on every GPU since Ampere."""

    def _config(self, *arguments: Any) -> Any:
        config = super()._config(*arguments)
        config.hardware_compatibility_level = self._trt.HardwareCompatibilityLevel.AMPERE_PLUS
        return config


def setup_of(case: Case, arguments: argparse.Namespace) -> Setup:
    """The case's model, read from the folder of models, and its batch."""
    file = Path(arguments.models, f"{case.model}.onnx")
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes want the model: one of them exports it
        if not file.exists():
            model_reader(arguments.models)(case.model)
    model = PeerModel(file, case.precision, file.with_suffix(""))  # which needs no torch
    lengths = choose_lengths(model.metadata.max_positions, case.batch, case.mean, case.seq_len)
    batch = draw_batch(model.metadata, draw_lengths(lengths, 0), case.seq_len, 0)
    return Setup(model, batch, arguments.engines, timing_cache=None)


def plan_of(case: Case, variant: str, arguments: argparse.Namespace) -> Path:
    """Where the engine of a variant is."""
    return Path(arguments.engines, f"{case.name} {variant}.plan".replace(", ", "_").replace(" ", "-"))


def build(case: Case, variant: str, arguments: argparse.Namespace) -> None:
    """Builds the engine of a variant."""
    setup, plan = setup_of(case, arguments), plan_of(case, variant, arguments)
    if variant == PADDED:
        build_padded_engine(setup.model.original, plan, typing="weak", **setup.shape)
        return
    options: dict[str, Any] = {"opt_tokens": setup.batch.tokens, "max_tokens": setup.batch.slots, "verify": False}
    if variant == SM80:
        options["builder"] = AmpereBuilder(setup.device, TacticOptions(timing_cache=None), None)
    build_engine(setup.ours, plan, linear=PADFREE if variant == OWN else TENSORRT, **setup.shape, **options)


def build_all(cases: Mapping[str, Case], arguments: argparse.Namespace, pool: ThreadPoolExecutor) -> None:
    """Starts to build what is missing, each engine in a process of its own; prints how each ended."""
    waiting = [
        (case, variant)
        for variant in VARIANTS  # padfree's own first: without them nothing is measured
        for case in cases.values()
        if variant in case.variants and variant in arguments.variants
    ]

    end = time.monotonic() + (arguments.seconds or float("inf"))

    def run(item: tuple[Case, str]) -> None:
        case, variant = item
        start = time.monotonic()
        if start > end:
            print(f"{case.name}, {variant}: left, {arguments.seconds:.0f} s are over", flush=True)
            return
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--build", case.name, variant]
        command += ["--models", str(arguments.models), "--engines", str(arguments.engines)]
        try:
            limit = min(SECONDS_FOR_ONE, end - start)
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            problem = (done.stderr.strip().splitlines() or ["no word"])[-1] if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = "ended before it was built"
        print(f"{case.name}, {variant}: {problem or 'built'}, {time.monotonic() - start:.0f} s", flush=True)

    for item in waiting:
        if not plan_of(*item, arguments).exists():
            pool.submit(run, item)


def prepare(case: Case, arguments: argparse.Namespace) -> Reference:
    """The model and batch of a case, and the right answers."""
    setup = setup_of(case, arguments)
    return Reference(setup, truth_of(setup))


def measure(case: Case, reference: Reference, arguments: argparse.Namespace) -> dict[str, Any]:
    """Checks and times the engines of a case that were built."""
    setup, ready, errors = reference.setup, dict[str, Contender](), dict[str, float]()
    for variant in case.variants:
        plan = plan_of(case, variant, arguments)
        if variant not in arguments.variants or not plan.exists():
            continue
        feeds = setup.batch.pad(setup.model.original_metadata) if variant == PADDED else None
        ready[variant] = contender_of(setup, plan, feeds)
        errors[variant] = relative_error(ready[variant].answers, reference.right)
        if not errors[variant] <= MAX_ERRORS[case.precision]:
            raise ValueError(f"{variant}: error {errors[variant]:.1e}, allowed: {MAX_ERRORS[case.precision]:.1e}")
    if OWN not in ready:
        raise ValueError("the engine with padfree's GEMMs was not built")
    timings = time_in_turns({variant: contender.ways for variant, contender in ready.items()})
    for contender in ready.values():
        contender.close()
    return {
        "case": case.name,
        "tokens": setup.batch.tokens,
        "ms": {variant: round(best(timing), 4) for variant, timing in timings.items()},
        "errors": {variant: float(f"{error:.2g}") for variant, error in errors.items()},
    }


def attempt(case: Case, step: Callable[[], Result]) -> Result | None:
    """A step's result; None, with a message, where it fails: the other cases can still be measured."""
    try:
        return step()
    except Exception as error:
        print(f"{case.name}: FAILED: {type(error).__name__}: {error}", flush=True)
        return None


def main() -> int:
    """Builds, measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of cases")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="default: all")
    parser.add_argument("--models", type=Path, help="folder for exported models (default: a temporary one)")
    parser.add_argument("--engines", type=Path, help="folder for engines, which are kept (default: a temporary one)")
    parser.add_argument("--workers", type=int, default=4, help="engines that are built at a time")
    parser.add_argument("--seconds", type=float, help="end what is not built after so long")
    parser.add_argument("--json", type=Path, help="append one line per case to this file")
    parser.add_argument("--build", nargs=2, metavar=("CASE", "VARIANT"), help="build this engine alone, and stop")
    arguments = parser.parse_args()
    known = {case.name: case for case in CASES}
    if arguments.build:
        build(known[arguments.build[0]], arguments.build[1], arguments)
        return 0
    cases = {name: case for name, case in known.items() if not arguments.only or name in arguments.only}
    with tempfile.TemporaryDirectory(prefix="padfree-general-") as folder:
        for name in ("models", "engines"):
            if getattr(arguments, name) is None:
                setattr(arguments, name, Path(folder, name))
            getattr(arguments, name).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(arguments.workers) as pool:
            build_all(cases, arguments, pool)
            references = {name: attempt(case, partial(prepare, case, arguments)) for name, case in cases.items()}
        failed = 0
        for name, case in cases.items():
            reference = references[name]
            record = None if reference is None else attempt(case, partial(measure, case, reference, arguments))
            if record is None:
                failed += 1
                continue
            print(record, flush=True)
            keep(arguments.json, record)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
