# SPDX-License-Identifier: Apache-2.0
"""`padfree simulate`: replays arrivals against measured cost tables and compares batching policies."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from padfree.builder.errors import BuildError

from .console import Working, error_console, number_text, print_line, print_table
from .option_kinds import file, integer, number, numbers_of, seed, word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from padfree.builder.simulate.report import Summary
    from padfree.runtime.batching import Waiting


HELP = "compare batching policies on measured costs"
DESCRIPTION = (
    "Replays arrivals of requests, generated or recorded, against cost tables of `padfree costs`, in "
    "simulated time, with three policies on every table: one request per run, first come first served within the "
    "budget, and the cheapest cut. Only runs and queues are simulated: no network, no time to decide."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument("costs", type=Path, nargs="+", help="cost tables; results carry the files' names")
    group = parser.add_argument_group("arrivals")
    file(group, "--trace", "FILE", "recorded arrivals: JSON lines of at_ms and length")
    word(group, "--rates", "LIST", "requests per second, separated by commas (default 1000; with --trace: the trace's)")
    number(group, "--seconds", "S", "duration of the arrivals", default=10.0)
    word(group, "--arrivals", "poisson|bursts", "how requests arrive (default poisson)", default="poisson")
    word(
        group,
        "--lengths",
        "short-skewed|uniform|FILE",
        "lengths of requests, or a file of observed ones (default short-skewed)",
        default="short-skewed",
    )
    integer(group, "--max-length", "L", "longest request", default=512)
    number(group, "--deadline-ms", "MS", "drop requests that cannot be answered in time")
    seed(group, "seed of times and lengths")
    file(group, "--save-trace", "FILE", "write the arrivals of the first rate, for --trace")
    group = parser.add_argument_group("server")
    integer(group, "--max-batch", "B", "maximum sequences per run (default: the table's)")
    integer(group, "--max-tokens", "T", "maximum tokens per run (default: the largest measured)")
    number(group, "--delay-ms", "MS", "how long a request waits for others", default=0.0)
    integer(group, "--max-waiting", "N", "longest queue", default=1024)
    file(parser, "--json", "FILE", "write results as JSON lines")
    file(parser, "--plot", "FILE", "draw latency over throughput (.svg, .png)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    import json

    from padfree.builder.destinations import check_destinations
    from padfree.builder.files import write_files
    from padfree.builder.simulate.plot import check_plot, draw
    from padfree.builder.simulate.replay import replay
    from padfree.builder.simulate.report import contenders, summarise
    from padfree.builder.simulate.trace import write_trace
    from padfree.runtime.batching import read_costs

    outputs = [("--json", arguments.json), ("--plot", arguments.plot), ("--save-trace", arguments.save_trace)]
    inputs = [("--trace", arguments.trace), ("--lengths", Path(arguments.lengths))]
    check_destinations(outputs, [*(("the cost table", path) for path in arguments.costs), *inputs])
    if arguments.plot is not None:
        check_plot(arguments.plot)
    _check_server(arguments)
    tables = {path.stem: read_costs(path) for path in arguments.costs}
    if len(tables) < len(arguments.costs):
        raise BuildError("two cost tables have the same name; rename one, results carry the files' names")
    traces = _traces(arguments)
    if arguments.save_trace is not None:
        write_trace(arguments.save_trace, traces[0])
    summaries = []
    with Working(error_console(), "simulating") as set_status:
        for trace in traces:
            for contender in contenders(
                tables,
                max_batch=arguments.max_batch,
                max_tokens=arguments.max_tokens,
                max_delay_s=arguments.delay_ms / 1e3,
            ):
                set_status.update(f"{len(trace)} requests: {contender.name}")
                done = replay(trace, contender.policy, contender.costs, max_waiting=arguments.max_waiting)
                summaries.append(summarise(contender, trace, done))
    _print(summaries, _title(arguments))
    if arguments.json is not None:
        content = "".join(json.dumps(summary.record()) + "\n" for summary in summaries)
        write_files([(arguments.json, content.encode())])
    if arguments.plot is not None:
        draw(summaries, _title(arguments), arguments.plot)
    return 0


def _check_server(arguments: argparse.Namespace) -> None:
    """Raises BuildError where no server could be as the options say."""
    for option in ("max_batch", "max_tokens", "max_waiting"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            name = f"--{option.replace('_', '-')}"
            raise BuildError(f"{name} is {value}, allowed: 1 or more; leave it out for the default")
    if not 0 <= arguments.delay_ms < math.inf:
        raise BuildError(f"--delay-ms is {arguments.delay_ms:g}, allowed: 0 or more; leave it out for no delay")


def _traces(arguments: argparse.Namespace) -> list[Sequence[Waiting]]:
    """A trace a rate."""
    from padfree.builder.peers.batch import read_lengths
    from padfree.builder.simulate.trace import ARRIVALS, LENGTHS, generate, read_trace, stretch

    rates = numbers_of(arguments.rates, float, "--rates", "500,1000") if arguments.rates else []
    if arguments.trace is not None:
        trace = read_trace(arguments.trace)
        return [stretch(trace, rate) for rate in rates] or [trace]
    if arguments.arrivals not in ARRIVALS:
        raise BuildError(f"--arrivals is {arguments.arrivals!r}, allowed: {', '.join(ARRIVALS)}; pass one of them")
    lengths = arguments.lengths if arguments.lengths in LENGTHS else read_lengths(Path(arguments.lengths))
    return [
        generate(
            rate=rate,
            seconds=arguments.seconds,
            arrivals=arguments.arrivals,
            lengths=lengths,
            max_length=arguments.max_length,
            deadline_s=math.inf if arguments.deadline_ms is None else arguments.deadline_ms / 1e3,
            seed=arguments.seed,
        )
        for rate in rates or [1000.0]
    ]


def _title(arguments: argparse.Namespace) -> str:
    if arguments.trace is not None:
        return f"arrivals of {arguments.trace.name}"
    return f"{arguments.arrivals} arrivals, {arguments.lengths} lengths up to {arguments.max_length}"


def _print(summaries: Sequence[Summary], title: str) -> None:
    columns = ("policy", "offered/s", "answered/s", "p50 ms", "p99 ms", "padding", "requests per run", "busy", "lost")
    rows = [
        (
            item.contender,
            f"{item.offered_rps:.0f}",
            f"{item.answered_rps:.0f}",
            number_text(item.p50_ms, ".2f"),
            number_text(item.p99_ms, ".2f"),
            f"{item.padding:.0%}",
            f"{item.run_requests:.1f}",
            f"{item.busy:.0%}",
            f"{item.refused + item.too_late:.1%}",
        )
        for item in summaries
    ]
    print_table(title, columns, rows)
    print_line("lost: requests that found the queue full, or could not be answered before their deadline")
