# SPDX-License-Identifier: Apache-2.0
"""Where an engine's time goes inside a CUDA graph: when every kernel began and ended, and what it added to the run.

    python -m benchmarks.engine.timeline --json benchmarks/results/h200/timeline.jsonl

BERT-base, packed, fp16 or fp8 (`--precision`). CUPTI's records (through PyTorch's profiler) of some replays of one
graph. A kernel adds what lies between the end of the kernels before it and its own end; so the shares sum to the whole
run, gaps included, and kernels that overlap are not counted twice; one at most is what the slowest of its kind adds.
Gaps: from the last end to a kernel's start, where nothing ran.
`layers.py` asks TensorRT, which runs one layer at a time; this looks at the run that users get.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from padfree.builder import build_engine
from padfree.builder.folders.head import HeadOptions
from padfree.builder.folders.source import opened
from padfree.builder.peers.batch import draw_batch, draw_lengths
from padfree.builder.peers.setup import PeerModel, Setup
from padfree.onnx_tools.cost import Lengths
from padfree.runtime import Session

from benchmarks.command import json_parser, keep
from benchmarks.models import make
from benchmarks.sweep.cases import FILL

from .timeline_account import Kernel, account, kinds_of, replays_of

REPLAYS = 20


def record_replays(
    session: Session, seq_lens: list[int], seq_len: int, folder: Path
) -> tuple[list[list[Kernel]], float]:
    """The kernels of REPLAYS replays, and the median time of one without the profiler in us."""
    backend: Any = session.backend
    batch = draw_batch(session.metadata, seq_lens, seq_len)
    with backend.prepare(session.feeds(batch.ragged)) as prepared:
        graph = prepared.capture()
        plain_us = 1e3 * statistics.median(prepared.time_ms(10 * REPLAYS, graph=graph))
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            prepared.time_ms(REPLAYS, graph=graph)
            torch.cuda.synchronize()
    trace = folder / "trace.json"
    profile.export_chrome_trace(str(trace))
    return replays_of(trace, REPLAYS), plain_us


def main() -> int:
    """Builds, records, prints."""
    parser = json_parser(__doc__, "one line")
    parser.add_argument("--batch", type=int, default=16, help="sentences")
    parser.add_argument("--seq-len", type=int, default=512, help="S; lengths are uniform in [0.2 S, S]")
    parser.add_argument("--model", default="bert-base", help="a model of models.py")
    parser.add_argument("--precision", choices=("fp16", "fp8"), default="fp16", help="of the products")
    parser.add_argument("--linear", choices=("auto", "padfree", "tensorrt"), default="auto", help="who multiplies")
    parser.add_argument("--norms", choices=("folded", "separate"), default="folded", help="who computes layer norms")
    parser.add_argument("--vectors", choices=("cls", "mean"), help="one per text, of length 1, instead of all outputs")
    parser.add_argument("--models", type=Path, help="folder for the exported model (default: a temporary one)")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    parser.add_argument("--kernels", action="store_true", help="also print every kernel of the median replay")
    arguments = parser.parse_args()
    mean = arguments.seq_len if arguments.batch == 1 else FILL * arguments.seq_len
    seq_lens = draw_lengths(Lengths(arguments.batch, mean, arguments.seq_len))
    torch.cuda.init()
    head = HeadOptions((arguments.vectors,), normalize=True) if arguments.vectors else HeadOptions()
    with (
        tempfile.TemporaryDirectory(prefix="padfree-bench-") as name,
        opened(make(arguments.model, arguments.models or Path(name)).onnx, head) as source,
    ):
        plan = Path(name) / "model.plan"
        model = PeerModel(source.path, arguments.precision)
        batch = draw_batch(model.metadata, seq_lens, arguments.seq_len)
        build_engine(
            Setup(model, batch, Path(name)).ours,
            plan,
            max_batch=arguments.batch,
            max_seq_len=arguments.seq_len,
            opt_tokens=sum(seq_lens),
            timing_cache=arguments.timing_cache,
            linear=arguments.linear,
            norms=arguments.norms,
            verify=False,
        )
        with Session(plan) as session:
            replays, plain_us = record_replays(session, seq_lens, arguments.seq_len, Path(name))
    replay = sorted(replays, key=lambda kernels: kernels[-1].end_us)[len(replays) // 2]
    span_us = max(kernel.end_us for kernel in replay)
    if arguments.kernels:
        for kernel, kind in zip(replay, kinds_of(replay), strict=True):
            print(f"{kernel.start_us:9.1f} {kernel.end_us - kernel.start_us:8.2f} {kind:32s} {kernel.name[:90]}")
    table = account(replay)
    print(f"{'':32s} kernels    adds us  one at most  resident us   gaps us")
    for kind, row in sorted(table.items(), key=lambda item: -item[1]["adds_us"]):
        times = f"{row['adds_us']:10.1f} {row['most_us']:12.1f} {row['busy_us']:12.1f} {row['gap_us']:9.1f}"
        print(f"{kind:32s} {row['kernels']:7.0f} {times}")
    print(f"replay {span_us:.1f} us under the profiler, {plain_us:.1f} us without", flush=True)
    rounded = {kind: {key: round(value, 2) for key, value in row.items()} for kind, row in table.items()}
    norms = "" if arguments.norms == "folded" else f", norms {arguments.norms}"
    shape = f"{arguments.batch} x {arguments.seq_len}"
    fp8 = "" if arguments.precision == "fp16" else f", {arguments.precision}"
    vectors = f", {arguments.vectors} vectors" if arguments.vectors else ""
    record = {
        "case": f"{arguments.model}, {shape}, linear {arguments.linear}{norms}{fp8}{vectors}",
        "tokens": sum(seq_lens),
        "kinds": rounded,
        "replay_us": round(span_us, 1),
        "replay_unprofiled_us": round(plain_us, 1),
    }
    keep(arguments.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
