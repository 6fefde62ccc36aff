# SPDX-License-Identifier: Apache-2.0
"""A packed engine against a padded one in Triton under the same load; the packed one also in the native backend.

    python -m benchmarks.load.contest build --folder /tmp/contest
    python -m benchmarks.load.contest run --folder /tmp/contest --json benchmarks/results/local/load.jsonl
    python -m benchmarks.load.contest soak --folder /tmp/contest --rate 500 --json benchmarks/results/local/soak.jsonl

BERT-base in fp16 with its pooled output. The padded engine is the original model built by TensorRT alone. All servers
but "native" use the Python backend with the same host code; they differ in how a call's sequences are cut into runs:
"packed" by tokens, "padded" in order of arrival, each run padded to its longest, "padded-sorted" by dynamic programming
over measured costs. "native" is padfree's own backend with the packed engine. Answers of all servers are compared with
those that the first one gives to each request alone. Needs PADFREE_TRITON (tests/triton/install_server.py).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto
from padfree.builder import build_engine
from padfree.builder.peers.padded_engine import build_padded_engine
from padfree.builder.triton import ServingOptions, write_repository
from padfree.onnx_tools import synthetic
from padfree.runtime import Session
from padfree.runtime.batching.measure import measure_costs
from padfree.runtime.plan_files import open_plan

from benchmarks.command import keep
from tests.support.native_triton import installed_backends, tensorrt_environment
from tests.support.triton_server import TritonServer

from .client import Target
from .fleet import Fleet
from .reference import references
from .session_rate import session_rate
from .soak import soak
from .steps import Step, Tell, load_parser, make_tell, tell_limit
from .traffic import Request, Traffic

MODEL, OUTPUT = "bert", "pooler_output"
SESSION = "session"
NATIVE = "padfree"
COSTS = "costs.json"
MAX_SEQ_LEN = 512
PACKED: dict[str, Any] = {"max_batch": 256, "max_seq_len": MAX_SEQ_LEN, "max_tokens": 16384, "opt_tokens": 8192}
PADDED: dict[str, Any] = {"max_batch": 64, "max_seq_len": MAX_SEQ_LEN}
SEQUENCES_A_CALL = 256
COST_LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
COST_BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class ContestServer:
    """A server of the contest.

    Attributes:
        plan: the name of its engine's file.
        max_sequences: the most sequences in a run, 0 for as many as the engine takes.
        sorted: whether runs are chosen by dynamic programming over costs.
        backend: python, or NATIVE.
    """

    plan: str
    max_sequences: int = 0
    sorted: bool = False
    backend: str = "python"


CONTENDERS = {
    "packed": ContestServer("packed.plan"),
    "native": ContestServer("packed.plan", backend=NATIVE),
    "padded": ContestServer("padded.plan", max_sequences=32),
    "padded-sorted": ContestServer("padded.plan", sorted=True),
}


def build(folder: Path, timing_cache: str, instances: int, names: Collection[str]) -> None:
    """Builds engines that the folder lacks, measures costs if a contender needs them, and writes repositories.

    Args:
        folder: where everything is written; engines that it has are kept.
        timing_cache: TensorRT's.
        instances: of every server's model.
        names: the contenders.
    """
    model = encoder()
    contenders = {name: CONTENDERS[name] for name in names}
    plans = {contender.plan for contender in contenders.values()}
    if "packed.plan" in plans and not (folder / "packed.plan").exists():
        build_packed(model, folder, timing_cache)
    if "padded.plan" in plans and not (folder / "padded.plan").exists():
        folder.mkdir(parents=True, exist_ok=True)
        build_padded_engine(model, folder / "padded.plan", timing_cache=timing_cache, **PADDED)
        print("padded engine built", flush=True)
    if any(contender.sorted for contender in contenders.values()):
        measure_padded(folder)
    for name, contender in contenders.items():
        write(folder, name, contender, instances)


def measure_padded(folder: Path) -> None:
    """Measures what runs of the padded engine cost, for the contender that chooses them by it."""
    with Session(folder / "padded.plan") as session:
        costs = measure_costs(session, lengths=COST_LENGTHS, batches=COST_BATCHES, repeats=5)
    (folder / COSTS).write_text(costs.to_json(), encoding="utf-8")
    for row, length in zip(costs.cost_ms, costs.lengths, strict=True):
        print(f"padded, {length} tokens: " + " ".join(f"{cost:.2f}" for cost in row if cost is not None), flush=True)


def encoder() -> ModelProto:
    """BERT-base with its pooled output only."""
    model = synthetic.bert_model()
    for output in [item for item in model.graph.output if item.name != OUTPUT]:
        model.graph.output.remove(output)
    return model


def build_packed(model: ModelProto, folder: Path, timing_cache: str) -> Path:
    """Builds the packed engine as packed.plan in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = folder / "packed.plan"
    build_engine(model, plan, precision="fp16", verify=False, timing_cache=timing_cache, **PACKED)
    print("packed engine built", flush=True)
    return plan


def write(folder: Path, name: str, contender: ContestServer, instances: int) -> None:
    """Writes a contender's repository."""
    costs = folder / COSTS if contender.sorted else None
    options = ServingOptions(MODEL, contender.backend, SEQUENCES_A_CALL, instances=instances, costs=costs)
    if contender.backend == NATIVE:  # its instances run two calls at a time
        engine = open_plan(folder / contender.plan).engine
        options = replace(options, instances=1, server_tensorrt=engine.tensorrt if engine else None)
    written = write_repository(folder / contender.plan, folder / name, options, overwrite=True).folder
    if contender.max_sequences:
        with (written / MODEL / "config.pbtxt").open("a", encoding="utf-8") as config:
            value = f'{{ string_value: "{contender.max_sequences}" }}'
            config.write(f'parameters {{ key: "padfree_max_sequences" value {value} }}\n')


@contextmanager
def serve(repository: Path) -> Iterator[TritonServer]:
    """The server of the contender after which the repository is named."""
    options = ["--allow-gpu-metrics=false", f"--http-thread-count={os.cpu_count() or 1}"]
    with tempfile.TemporaryDirectory(prefix="padfree-contest-") as work:
        installed = Path(os.environ["PADFREE_TRITON"])
        environment: dict[str, str] = {}
        if CONTENDERS[repository.name].backend == NATIVE:
            options.append(f"--backend-directory={installed_backends(installed, Path(work) / 'backends')}")
            environment = tensorrt_environment()
        with TritonServer(installed, [repository], Path(work), *options, environment=environment) as server:
            yield server


def run(arguments: argparse.Namespace) -> None:
    """Finds every contender's limit; benchmarks.load.report compares them."""
    traffic, requests = traffic_of(arguments)
    expected: list[np.ndarray[Any, Any]] | None = None
    setting = {"protocol": arguments.protocol, **vars(traffic)}
    names = arguments.only or tuple(CONTENDERS)
    if any(CONTENDERS[name].plan == "packed.plan" for name in names):
        run_session(arguments, requests, setting)
    for name in names:
        kept = {**setting, "mode": "contest", "label": name, "p99_limit_ms": arguments.p99_ms}
        tell = make_tell(arguments.json, kept, f"{name}: ")
        with serve(arguments.folder / name) as server:
            target = target_of(server, arguments)
            expected = expected or references(target, requests)
            with Fleet(target, requests, workers=arguments.workers, expected=expected) as fleet:

                def offer(rate: float, fleet: Fleet = fleet, tell: Tell = tell) -> Step:
                    return tell(fleet.step(rate, arguments.seconds))

                tell_limit(offer, arguments.p99_ms, arguments.start, f"{name}: ")


def traffic_of(arguments: argparse.Namespace) -> tuple[Traffic, list[Request]]:
    """What the command line says is sent."""
    traffic = Traffic(longest=MAX_SEQ_LEN, texts=arguments.texts)
    return traffic, traffic.requests(arguments.pool)


def target_of(server: TritonServer, arguments: argparse.Namespace) -> Target:
    """The model of a server, by the protocol that the command line names."""
    return Target(arguments.protocol, server.url(arguments.protocol), MODEL, OUTPUT, arguments.connections)


def run_session(arguments: argparse.Namespace, requests: Sequence[Request], setting: Mapping[str, Any]) -> None:
    """Measures the packed engine's Session on the same texts."""
    sizes = {"max_tokens": PACKED["opt_tokens"], "max_sequences": PACKED["max_batch"]}
    plan = arguments.folder / "packed.plan"
    found = session_rate(plan, requests, OUTPUT, seconds=2 * arguments.seconds, **sizes)
    print(f"{SESSION}: " + " ".join(f"{name} {value:,}" for name, value in found.items()), flush=True)
    keep(arguments.json, {**setting, "mode": "session rate", "label": SESSION, **sizes, **found})


def soak_packed(arguments: argparse.Namespace) -> None:
    """Keeps a steady load on the packed server, or on the native one."""
    traffic, requests = traffic_of(arguments)
    setting = {"mode": "soak", "label": arguments.server, "protocol": arguments.protocol}
    tell = make_tell(arguments.json, {**setting, **vars(traffic)})
    with serve(arguments.folder / arguments.server) as server:
        target = target_of(server, arguments)
        with Fleet(target, requests, workers=arguments.workers, expected=references(target, requests)) as fleet:
            pid = server.process.pid
            print(soak(fleet, arguments.rate, arguments.minutes, pid, step_s=arguments.seconds, tell=tell), flush=True)


def main() -> None:
    """Runs the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--folder", type=Path, required=True, help="engines and repositories")
    load = load_parser(common)
    load.add_argument("--protocol", choices=("http", "grpc"), default="http")
    load.add_argument("--texts", type=int, default=8, help="texts of a request")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    result = modes.add_parser("build", parents=[common], help="engines, costs, repositories")
    result.add_argument("--timing-cache", default="default", help="TensorRT's timing cache")
    result.add_argument("--instances", type=int, default=2, help="instances of every server's model")
    result.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="not all contenders")
    contest = modes.add_parser("run", parents=[load], help="every contender's limit")
    contest.add_argument("--only", nargs="+", choices=CONTENDERS, help="not all contenders")
    contest.add_argument("--p99-ms", type=float, default=50.0)
    contest.add_argument("--start", type=float, default=400.0, help="the first rate, in requests per second")
    long = modes.add_parser("soak", parents=[load], help="one server for long")
    long.add_argument("--server", choices=("packed", "native"), default="packed")
    long.add_argument("--rate", type=float, required=True, help="requests per second")
    long.add_argument("--minutes", type=float, default=6.0)
    arguments = parser.parse_args()
    if arguments.mode == "build":
        build(arguments.folder, arguments.timing_cache, arguments.instances, arguments.only)
    elif arguments.mode == "run":
        run(arguments)
    else:
        soak_packed(arguments)


if __name__ == "__main__":
    main()
