# SPDX-License-Identifier: Apache-2.0
"""Attacks a server of a small model with everything at once, and says what came of it.

    python -m tests.hostile                                      # 20,000 requests, 3 minutes at most
    python -m tests.hostile --requests 1000000 --seconds 3600    # the long one

Good and bad requests, callers who hang up, who read or write slowly, who ask for much; front-ends that are killed or
stand still, a model's process that stands still, another file in the place of the tokenizer. Exit code 1 if an answer
was wrong or crossed, if a process failed, or if one text at a time took longer than it may.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.serving.conftest import EMBEDDER
from tests.support.served_models import Server, write_model

from .attack import ASKERS, STOP_S, Attack, Tally

PRODUCTS = 4
"""Makes the model slow enough that there is something to wait for."""
MOST_ONE_TEXT_S = 3 * 0.1 + STOP_S
"""Of the 99th percentile: three runs, and the time for which the model's process is stopped now and then."""


def attack(folder: Path, requests: int, seconds: float, seed: int) -> tuple[Tally, str]:
    """What came, and the server's log."""
    model = write_model(folder / "model.onnx", text=EMBEDDER.to_dict(), products=PRODUCTS)
    with Server(model, "--processes", "2", "--request-seconds", "10") as server:
        tally = asyncio.run(Attack(server, model, requests, seconds, seed).run())
        return tally, server.end()


def summary(tally: Tally, log: str) -> dict[str, Any]:
    """The figures."""
    latencies = tally.latencies or [0.0]
    half = tally.memory[len(tally.memory) // 2 :] or [(0.0, 0)]
    return {
        "requests": sum(tally.outcomes.values()),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "wrong": tally.wrong[:20],
        "one_text_ms": {f"p{share}": round(1e3 * float(np.percentile(latencies, share)), 1) for share in (50, 90, 99)},
        "memory_mib": [round(size / 2**20) for _, size in (*tally.memory[:1], half[0], half[-1])],
        "started_again": [tally.started_again, log.count("is started again")],
        "tracebacks": log.count("Traceback"),
    }


def too_many_lost(tally: Tally) -> bool:
    """Whether more requests went without an answer than were under way in front-ends that were killed or stopped."""
    return tally.outcomes["lost with its front-end"] > ASKERS * tally.started_again


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tally, log = attack(Path(folder), arguments.requests, arguments.seconds, arguments.seed)
    found = summary(tally, log)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    slow = found["one_text_ms"]["p99"] > 1e3 * MOST_ONE_TEXT_S
    return int(bool(tally.wrong) or slow or bool(found["tracebacks"]) or too_many_lost(tally))


if __name__ == "__main__":
    sys.exit(main())
