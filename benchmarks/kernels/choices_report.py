# SPDX-License-Identifier: Apache-2.0
"""What benchmarks.kernels.choices measured: how often each kind of tiling is chosen, and what GEMMs lose without it.

    python -m benchmarks.kernels.choices_report choices.jsonl

A line for every epilogue and kind of tiling ("64", "64 shared", "128 resident"): for how many GEMMs and token counts a
build chooses it, and by how much the next best of another kind is slower, at the median and at the most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRIED = 5
"""How many tilings of the cost model's ranking a build tries (plugins/linear/measure.cu)."""


@dataclass(frozen=True)
class ChosenTiling:
    """The choice for one GEMM and token count.

    Attributes:
        epilogue: what becomes of its sums.
        kind: that of the tiling that a build takes.
        lost: how much slower the next best kind is, relative to its time; negative if a build misses the best one.
    """

    epilogue: str
    kind: str
    lost: float


def kind_of(choice: int) -> str:
    """The tokens of a tile, and which code computes it: 64, 64 shared or 128 resident."""
    parts = choice >> 24 & 15
    return f"{choice & 0xFFFF}" + ("" if parts == 1 else " shared" if parts else " resident")


def epilogue_of(record: Mapping[str, Any]) -> str:
    """The epilogue in words: types, activation, norms, and whether something is added, gated or rotated."""
    words = ["e4m3" if record["results"] else "fp16", str(record["activation"])]
    words += ["gated"] * bool(record["gated"]) + ["rotated"] * (record["rotary_features"] > 0)
    words += ["added"] * bool(record["adds"]) + [f"norms {'+'.join(record['norms'])}"] * bool(record["norms"])
    return " ".join(words + [f"to {'+'.join(record['results'])}"] * bool(record["results"]))


def choose(record: Mapping[str, Any]) -> ChosenTiling:
    """What a build would choose according to a line of the measurements."""
    times = {int(choice): float(us) for choice, us in record["times_us"].items()}
    taken = min((choice for choice in record["first"][:TRIED]), key=times.__getitem__)
    others = [us for choice, us in times.items() if kind_of(choice) != kind_of(taken)]
    return ChosenTiling(epilogue_of(record), kind_of(taken), min(others) / times[taken] - 1 if others else float("inf"))


def table(records: list[Mapping[str, Any]]) -> str:
    """The lines of the report."""
    results: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in map(choose, records):
        results[one.epilogue, one.kind].append(one.lost)
    order = sorted(results, key=lambda key: (key[0], " " in key[1], key[1].partition(" ")[2], int(key[1].split()[0])))
    lines = [f"{'epilogue':48s} {'tiling':14s} {'chosen':>6s} {'without it':>11s} {'at most':>8s}"]
    for epilogue, kind in order:
        lost = results[epilogue, kind]
        lines.append(
            f"{epilogue:48s} {kind:14s} {len(lost):6d} {100 * statistics.median(lost):9.1f} % {100 * max(lost):6.1f} %"
        )
    return "\n".join(lines)


def main() -> int:
    """Reads and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, help="file that benchmarks.kernels.choices wrote")
    arguments = parser.parse_args()
    print(table([json.loads(line) for line in arguments.measured.read_text("utf-8").splitlines()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
