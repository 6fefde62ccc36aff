# SPDX-License-Identifier: Apache-2.0
"""Attacks a server of a small model with everything at once, and says what came of it.

    python -m tests.hostile                                      # 20,000 requests, 3 minutes at most
    python -m tests.hostile --requests 1800000 --seconds 3600 --spread    # the long one

Good and bad requests, callers who hang up, who read or write slowly, who ask for much, who come all at once; front-ends
and the process with the model killed, stopped, and started again; other files in the places of model and tokenizer, and
a disk on which no file can grow. The model sums rows of a table, so that every answer is compared with what NumPy makes
of the text. Exit code 1 if a check failed; `checks` has all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from .attack import ASKERS, Attack
from .disturbances import PROCESSES
from .service import Files, Service
from .tally import Tally, summary

MOST_ONE_TEXT_MS = 600.0
"""The limit for the 99th percentile: three runs of at most 0.1 s each, two of which share the cores at any time."""
MOST_GROWTH = 0.01
LONG_S = 1800.0
"""In shorter attacks memory is shown but not judged: allocators take that long to reach their steady state."""
LOST = 3
"""Requests that each caller may lose per ended process: the current one, one that is sent too early, and its bursts."""
BACK_S = 30.0
"""A server that was killed has to be back within this time, even on cores that others use."""


def attack(
    folder: Path, requests: int, seconds: float, seed: int, products: int = 0, *, spread: bool = False
) -> tuple[Tally, str]:
    """Runs the attack; returns its tally and the server's log."""
    files = Files(folder, products)
    service = Service(files, "--processes", str(PROCESSES), "--request-seconds", "10")
    try:
        tally = asyncio.run(Attack(service, files, requests, seconds, seed, spread=spread).run())
    finally:
        log = service.end()
    return tally, log


def checks(tally: Tally, found: dict[str, Any]) -> dict[str, bool]:
    """The conditions that have to hold."""
    growth = found["memory_growth_second_half"]
    return {
        "no answer is wrong or another's, and the server was well after all that was done to it": not tally.wrong,
        "no request is lost but those under way in processes that were killed or stopped": not too_many_lost(tally),
        "one text at a time is answered in time": 0 < found["one_text_ms"]["p99"] <= MOST_ONE_TEXT_MS,
        "no process failed in a way that nobody foresaw": not found["tracebacks"],
        "servers are there again in time": (found["started_again_within_s"] or 0) <= BACK_S,
        "memory does not grow": tally.seconds < LONG_S or (growth is not None and growth < MOST_GROWTH),
    }


def too_many_lost(tally: Tally) -> bool:
    """Whether more requests went without an answer than could be under way in processes that were ended."""
    ended = sum(
        count for what, count in tally.disturbances.items() if what.startswith(("kill", "stop front end", "fill disk"))
    )
    lost = sum(count for what, count in tally.outcomes.items() if what.endswith(("lost", "told of the end")))
    return lost > LOST * ASKERS * ended


def machine() -> str:
    """The name of the processor."""
    found = (
        re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    )
    return found[1] if found else platform.machine()


def make_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--products", type=int, default=0, help="how slow the model is")
    parser.add_argument("--spread", action="store_true", help="send the requests in waves over all of the time")
    parser.add_argument("-o", "--output", type=Path, help="a file for what is printed")
    parser.add_argument("--log", type=Path, help="a file for the log of all servers")
    return parser


def main() -> int:
    """Runs the command."""
    arguments = make_parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally, log = attack(
            Path(folder),
            arguments.requests,
            arguments.seconds,
            arguments.seed,
            arguments.products,
            spread=arguments.spread,
        )
    found = {"processor": machine(), "model": f"rows of a table, {arguments.products} products", **summary(tally, log)}
    found["checks"] = checks(tally, found)
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments.log:
        arguments.log.write_text(log, "utf-8")
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
    return int(not all(found["checks"].values()))


if __name__ == "__main__":
    sys.exit(main())
