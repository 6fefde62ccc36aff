# SPDX-License-Identifier: Apache-2.0
"""How long `padfree build` takes for BERT-base: without a timing cache, and with the one that this leaves.

    python -m benchmarks.engine.build_time --json benchmarks/results/h200/build_time.jsonl

The whole command as a user runs it: rewriting and its check in onnxruntime, measuring PadfreeLinear, TensorRT, writing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from padfree.onnx_tools import save_model, synthetic

from benchmarks.command import json_parser, keep

GOALS_S = {"empty timing cache": 30, "filled timing cache": 10}
"""Most seconds that a build without checking the rewriting should take."""


def build_s(model: Path, cache: Path, options: list[str]) -> tuple[float, dict[str, float]]:
    """Seconds of one command in a process of its own, and of the phases that it reports."""
    plan = model.with_suffix(".plan")
    command = [sys.executable, "-m", "padfree.builder.cli", "build", str(model), "-o", str(plan)]
    command += ["--precision", "fp16", "--max-batch", "16", "--max-seq-len", "512", "--timing-cache", str(cache)]
    start = time.monotonic()
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    return seconds, json.loads(Path(f"{plan}.json").read_text("utf-8"))["engine"]["build_seconds"]


def main() -> None:
    """Builds, prints, records."""
    parser = json_parser(__doc__, "one line per build")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        model, cache = Path(name) / "base.onnx", Path(name) / "timing.cache"
        save_model(synthetic.bert_model(), model)
        for case, goal_s in GOALS_S.items():
            for checked in (False, True):
                if checked and case != "filled timing cache":
                    continue  # the check does not depend on the cache
                seconds, parts = build_s(model, cache, [] if checked else ["--no-verify"])
                title = f"{case}, {'rewriting checked' if checked else 'unchecked'}"
                print(f"{title:44s} {seconds:6.1f} s" + ("" if checked else f" (goal {goal_s} s)"))
                print("    " + ", ".join(f"{part} {value:.1f}" for part, value in parts.items()), flush=True)
                goal = None if checked else goal_s
                keep(arguments.json, {"case": title, "seconds": round(seconds, 1), "goal_s": goal, "parts_s": parts})


if __name__ == "__main__":
    main()
