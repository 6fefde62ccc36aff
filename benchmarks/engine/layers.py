# SPDX-License-Identifier: Apache-2.0
"""Where an engine's time goes: TensorRT's own layer times, summed by kind of layer.

    python -m benchmarks.engine.layers --json benchmarks/results/h200/layers.jsonl

Exports the BERT-base of models.py, builds its engine, runs it under TensorRT's profiler and prints a table.
The profiler serialises layers, so that their sum is more than the engine's time.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from padfree.builder import build_engine
from padfree.builder.peers.batch import MeasuredBatch, draw_batch, draw_lengths
from padfree.onnx_tools.cost import Lengths
from padfree.runtime import Session

from benchmarks.command import json_parser, keep
from benchmarks.models import make
from benchmarks.sweep.cases import FILL

RUNS = 20
KINDS = (
    ("attention", r"PadfreeAttention"),
    ("layer norm", r"Padfree(LayerNorm|PostNorm)"),
    ("embedding", r"Padfree(Embedding|TokenRows)"),
    ("schedule", r"PadfreeSchedule"),
    ("index", r"PadfreeIndex"),
    ("pack", r"PadfreePack"),
    ("unpack", r"PadfreeUnpack"),
    ("pool", r"PadfreePool"),
    ("QKV product", r"qkv"),
    ("intermediate product, GELU", r"_Fc_|intermediate"),
    ("output product", r"attention/output"),
    ("down product", r"output/dense|output_dense"),
    ("shape computation", r"^__mye"),
)
"""Kinds of layers, and patterns for their names in a rewritten TorchScript export; the first match counts."""


def kind_of(name: str) -> str:
    """The kind of a layer, by its name."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def layer_times_us(session: Session, batch: MeasuredBatch) -> dict[str, float]:
    """Median time of every layer in us for one batch."""
    import tensorrt

    times: dict[str, list[float]] = defaultdict(list)

    class Profiler(tensorrt.IProfiler):  # type: ignore[misc]
        """Collects what TensorRT reports after each run."""

        def __init__(self) -> None:
            tensorrt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name].append(1e3 * ms)

    backend: Any = session.backend
    with backend.prepare(session.feeds(batch.ragged)) as prepared:
        prepared.profile(Profiler(), RUNS)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    """Builds, measures, prints and records."""
    parser = json_parser(__doc__, "one line")
    parser.add_argument("--batch", type=int, default=16, help="sentences")
    parser.add_argument("--seq-len", type=int, default=512, help="S; lengths are uniform in [0.2 S, S]")
    parser.add_argument("--interface", choices=("packed", "padded"), default="packed", help="inputs and outputs")
    parser.add_argument("--models", type=Path, help="folder for the exported model (default: a temporary one)")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    arguments = parser.parse_args()
    seq_lens = draw_lengths(Lengths(arguments.batch, FILL * arguments.seq_len, arguments.seq_len))
    tokens = sum(seq_lens)
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        plan = Path(name) / "model.plan"
        build_engine(
            make("bert-base", arguments.models or Path(name)).onnx,
            plan,
            interface=arguments.interface,
            max_batch=arguments.batch,
            max_seq_len=arguments.seq_len,
            opt_tokens=tokens if arguments.interface == "packed" else None,
            timing_cache=arguments.timing_cache,
            verify=False,
        )
        with Session(plan) as session:
            layers = layer_times_us(session, draw_batch(session.metadata, seq_lens, arguments.seq_len))
    totals: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for layer, time_us in layers.items():
        totals[kind_of(layer)] += time_us
        counts[kind_of(layer)] += time_us > 0
    for kind, total in sorted(totals.items(), key=lambda item: -item[1]):
        print(f"{kind:28s} {counts[kind]:3d} layers {total:9.1f} us", flush=True)
    print(f"{'sum':28s} {sum(counts.values()):3d} layers {sum(totals.values()):9.1f} us", flush=True)
    suffix = ", padded interface" if arguments.interface == "padded" else ""
    record = {
        "case": f"base, {arguments.batch} x {arguments.seq_len}{suffix}",
        "tokens": tokens,
        "kinds_us": {kind: round(total, 2) for kind, total in totals.items()},
        "layers_us": {layer: round(time_us, 2) for layer, time_us in layers.items()},
    }
    keep(arguments.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
