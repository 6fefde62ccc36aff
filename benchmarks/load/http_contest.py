# SPDX-License-Identifier: Apache-2.0
"""`padfree serve` under load, tokenising included: the most tokens per second within a latency, by texts per request.

    python -m benchmarks.load.http_contest build --folder /tmp/contest
    python -m benchmarks.load.http_contest run --model /tmp/contest/packed.plan --processes 8 --json http.jsonl

The engine is that of benchmarks.load.contest, so that the limit with 8 texts per request is compared with Triton's,
whose clients send tokens; here they send texts as long as these. Answers are compared with those that each request
gets alone. Every step records how long the server's processes had a core: `cpu_model_s` the one with the model,
`cpu_front_ends_s` all others together. The engine's vocabulary is larger than the tokenizer's; its weights are random.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from padfree.builder.demo.demo import DEMO_DATA

from tests.support.served_models import Server

from .client import Target
from .contest import MAX_SEQ_LEN, OUTPUT, build_packed, encoder
from .fleet import Fleet
from .reference import references
from .steps import Step, load_parser, make_tell, tell_limit
from .texts import TextTraffic
from .traffic import Traffic

TOKENIZER = DEMO_DATA / "tokenizer.json"
STARTS = {1: 4000.0, 8: 1000.0, 32: 250.0}
"""First rates in requests per second, by texts per request; others start with as many texts as with 8."""


def run(arguments: argparse.Namespace) -> None:
    """Finds the limit for every number of texts per request."""
    options = ["--tokenizer", str(TOKENIZER), "--output", OUTPUT, "--task", "embed"]
    options += ["--processes", str(arguments.processes), "--contexts", str(arguments.contexts)]
    for texts in arguments.texts:
        with Server(arguments.model, *options) as server:
            measure(server, texts, arguments)


def measure(server: Server, texts: int, arguments: argparse.Namespace) -> None:
    """Finds the limit for one number of texts per request."""
    traffic = Traffic(longest=MAX_SEQ_LEN, texts=texts)
    requests = TextTraffic(traffic, TOKENIZER).requests(arguments.pool)
    setting = {"mode": "http", "processes": arguments.processes, "label": "serve", "p99_limit_ms": arguments.p99_ms}
    title = f"{texts} texts: "
    tell = make_tell(arguments.json, {**setting, **vars(traffic)}, title)
    target = Target("openai", "{}:{}".format(*server.address), "any", OUTPUT, arguments.connections)
    expected = references(target, requests)
    with Fleet(target, requests, workers=arguments.workers, expected=expected) as fleet:

        def offer(rate: float) -> Step:
            with cores_taken(server) as cpu:
                step = fleet.step(rate, arguments.seconds)
            return tell({"case": f"{texts} texts, {rate:.1f}/s", **step, **cpu})

        start = STARTS.get(texts, 8000.0 / texts)
        fleet.step(start, arguments.seconds)  # sizes that are new have no CUDA graph yet
        tell_limit(offer, arguments.p99_ms, start, title)


@contextmanager
def cores_taken(server: Server) -> Iterator[dict[str, float]]:
    """Seconds of cores that the server's processes take; they are filled in when the context ends."""
    results: dict[str, float] = {}
    processes = {"cpu_model_s": [server.process.pid], "cpu_front_ends_s": server.front_ends}
    before = {name: cpu_seconds(pids) for name, pids in processes.items()}
    yield results
    results.update({name: round(cpu_seconds(pids) - before[name], 2) for name, pids in processes.items()})


def cpu_seconds(pids: Sequence[int]) -> float:
    """Seconds of cores that processes have had, in all."""
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(times[11]) + int(times[12]) for times in fields) / ticks


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    result = modes.add_parser("build", help="the engine alone; contest's build makes the same")
    result.add_argument("--folder", type=Path, required=True)
    result.add_argument("--timing-cache", default="default", help="TensorRT's timing cache")
    contest = modes.add_parser("run", parents=[load_parser()], help="the limits")
    contest.add_argument("--model", type=Path, required=True, help="packed.plan of either build")
    contest.add_argument("--texts", type=int, nargs="+", default=[8, 1, 32], help="texts of a request")
    contest.add_argument("--processes", type=int, default=8, help="front-end processes")
    contest.add_argument("--contexts", type=int, default=2, help="runs under way at once")
    contest.add_argument("--p99-ms", type=float, default=50.0)
    arguments = parser.parse_args()
    if arguments.mode == "build":
        build_packed(encoder(), arguments.folder, arguments.timing_cache)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
