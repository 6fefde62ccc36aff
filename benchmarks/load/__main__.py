# SPDX-License-Identifier: Apache-2.0
"""Command line of the load generator; the package's docstring describes it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padfree.builder.bench.environment import append_record, environment

import benchmarks.load

from .client import Target
from .fleet import Fleet
from .limit import find_limit
from .reference import references
from .soak import soak
from .traffic import SHAPES, Traffic


def main() -> None:
    """Offers load, prints a line per step, and records it."""
    arguments = parse()
    protocol = "grpc" if arguments.grpc else "http"
    target = Target(
        protocol, arguments.grpc or arguments.http, arguments.model, arguments.output, arguments.connections
    )
    traffic = Traffic(arguments.shape, arguments.longest, arguments.texts)
    setting = {"label": arguments.label or arguments.model, "protocol": protocol, **vars(traffic), **environment()}

    def tell(record: dict[str, Any]) -> None:
        print(line(record), flush=True)
        if arguments.json:
            append_record(arguments.json, {"mode": arguments.mode, **setting, **record})

    requests = traffic.requests(arguments.pool)
    expected = None if arguments.no_compare else references(target, requests)
    with Fleet(target, requests, workers=arguments.workers, expected=expected) as fleet:

        def offer(rate: float) -> dict[str, Any]:
            record = fleet.step(rate, arguments.seconds, warm_up_s=arguments.warm_up)
            tell(record)
            return record

        if arguments.mode == "steps":
            for rate in arguments.rates:
                offer(rate)
        elif arguments.mode == "limit":
            best = find_limit(offer, arguments.p99_ms, arguments.start)
            print(f"within {arguments.p99_ms:g} ms: {line(best) if best else 'nothing'}")
        else:
            step_s = arguments.seconds
            print(soak(fleet, arguments.rate, arguments.minutes, arguments.pid, step_s=step_s, tell=tell))


def parse() -> argparse.Namespace:
    """Parses the command line."""
    common = argparse.ArgumentParser(add_help=False)
    where = common.add_mutually_exclusive_group(required=True)
    where.add_argument("--http", metavar="HOST:PORT", help="offer the load over HTTP")
    where.add_argument("--grpc", metavar="HOST:PORT", help="offer the load over gRPC")
    common.add_argument("--model", required=True)
    common.add_argument("--output", default="pooler_output", help="the output asked for and compared")
    common.add_argument("--shape", choices=SHAPES, default="short-skewed", help="how lengths are spread")
    common.add_argument("--longest", type=int, default=512, help="tokens of the longest text")
    common.add_argument("--texts", type=int, default=1, help="texts of a request")
    common.add_argument("--pool", type=int, default=500, help="different requests")
    common.add_argument("--workers", type=int, default=2, help="processes that send")
    common.add_argument("--connections", type=int, default=64, help="connections of each worker")
    common.add_argument("--seconds", type=float, default=5.0, help="length of a step")
    common.add_argument("--warm-up", type=float, default=1.0, help="seconds before it that are not counted")
    common.add_argument("--no-compare", action="store_true", help="take every answer as right")
    common.add_argument("--label", help="what the records call the server; the model's name by default")
    common.add_argument("--json", type=Path, help="append one line per step to this file")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description=benchmarks.load.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    steps = modes.add_parser("steps", parents=[common], help="given rates")
    steps.add_argument("--rates", type=float, nargs="+", required=True, help="requests a second")
    limit = modes.add_parser("limit", parents=[common], help="the most requests a second within a latency")
    limit.add_argument("--p99-ms", type=float, required=True)
    limit.add_argument("--start", type=float, default=200.0, help="the first rate")
    long = modes.add_parser("soak", parents=[common], help="steady load for long, with the server's memory")
    long.add_argument("--rate", type=float, required=True, help="requests a second")
    long.add_argument("--minutes", type=float, default=6.0)
    long.add_argument("--pid", type=int, required=True, help="process of the server")
    return parser.parse_args()


def line(record: Mapping[str, Any]) -> str:
    """A step in words."""
    latency = record["latency_ms"]
    bad = {name: record[name] for name in ("wrong", "refused", "lost") if record[name]}
    memory = [f"{name} {record[name]:.0f}" for name in ("host_mib", "gpu_mib") if record.get(name) is not None]
    return ", ".join(
        [
            f"offered {record['offered_per_s']:.0f}/s",
            f"answered {record['answered_per_s']:.0f}/s",
            f"{record['tokens_per_s']} tokens/s",
            f"p50 {latency['p50']} p99 {latency['p99']} max {latency['max']} ms",
            f"sent late p99 {record['late_p99_ms']} ms",
            *memory,
            *([str(bad)] if bad else []),
        ]
    )


if __name__ == "__main__":
    main()
