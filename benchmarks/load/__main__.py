# SPDX-License-Identifier: Apache-2.0
"""Command line of the load generator; the package's docstring describes it."""

from __future__ import annotations

import argparse

import benchmarks.load

from .client import Target
from .fleet import Fleet
from .reference import references
from .soak import soak
from .steps import Step, load_parser, make_tell, tell_limit
from .traffic import SHAPES, Traffic


def main() -> None:
    """Offers load, prints a line per step, and records it."""
    arguments = parse()
    protocol = "grpc" if arguments.grpc else "http"
    target = Target(
        protocol, arguments.grpc or arguments.http, arguments.model, arguments.output, arguments.connections
    )
    traffic = Traffic(arguments.shape, arguments.longest, arguments.texts)
    setting = {"mode": arguments.mode, "label": arguments.label or arguments.model, "protocol": protocol}
    tell = make_tell(arguments.json, {**setting, **vars(traffic)})
    requests = traffic.requests(arguments.pool)
    expected = None if arguments.no_compare else references(target, requests)
    with Fleet(target, requests, workers=arguments.workers, expected=expected) as fleet:

        def offer(rate: float) -> Step:
            return tell(fleet.step(rate, arguments.seconds, warm_up_s=arguments.warm_up))

        if arguments.mode == "steps":
            for rate in arguments.rates:
                offer(rate)
        elif arguments.mode == "limit":
            tell_limit(offer, arguments.p99_ms, arguments.start)
        else:
            pid, step_s = arguments.pid, arguments.seconds
            print(soak(fleet, arguments.rate, arguments.minutes, pid, step_s=step_s, tell=tell))


def parse() -> argparse.Namespace:
    """Parses the command line."""
    common = load_parser(pool=500, workers=2, connections=64, seconds=5.0)
    where = common.add_mutually_exclusive_group(required=True)
    where.add_argument("--http", metavar="HOST:PORT", help="offer the load over HTTP")
    where.add_argument("--grpc", metavar="HOST:PORT", help="offer the load over gRPC")
    common.add_argument("--model", required=True)
    common.add_argument("--output", default="pooler_output", help="the output asked for and compared")
    common.add_argument("--shape", choices=SHAPES, default="short-skewed", help="how lengths are spread")
    common.add_argument("--longest", type=int, default=512, help="tokens of the longest text")
    common.add_argument("--texts", type=int, default=1, help="texts of a request")
    common.add_argument("--warm-up", type=float, default=1.0, help="seconds before it that are not counted")
    common.add_argument("--no-compare", action="store_true", help="take every answer as right")
    common.add_argument("--label", help="what the records call the server; the model's name by default")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.load",
        description=benchmarks.load.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes = parser.add_subparsers(dest="mode", required=True)
    steps = modes.add_parser("steps", parents=[common], help="given rates")
    steps.add_argument("--rates", type=float, nargs="+", required=True, help="requests per second")
    limit = modes.add_parser("limit", parents=[common], help="the most requests per second within a latency")
    limit.add_argument("--p99-ms", type=float, required=True)
    limit.add_argument("--start", type=float, default=200.0, help="the first rate")
    long = modes.add_parser("soak", parents=[common], help="steady load for long, with the server's memory")
    long.add_argument("--rate", type=float, required=True, help="requests per second")
    long.add_argument("--minutes", type=float, default=6.0)
    long.add_argument("--pid", type=int, required=True, help="process of the server")
    return parser.parse_args()


if __name__ == "__main__":
    main()
