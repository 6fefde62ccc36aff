# SPDX-License-Identifier: Apache-2.0
"""BERT end to end on a GPU: padfree's engines beside padded TensorRT and torch.compile, checked first, in one process.

    python benchmarks/end_to_end.py --json benchmarks/results/h200/end_to_end.jsonl

Every case exports a Hugging Face BertModel with a fixed seed, builds a packed engine, a padded drop-in engine and a
padded engine of the original, compares their answers with fp32 truth, times them, and writes one JSON line.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_peers
from environment import append_record, environment
from models import Batch, bert, export, ragged_batch
from padfree.builder import build_engine
from padfree.builder.padded import build_padded_engine
from padfree.runtime import Session

ITERATIONS = 100
MAX_ERROR_RATIO = 2.0
"""Our error against fp32 truth may be this many times that of PyTorch in fp16."""


@dataclass(frozen=True)
class Case:
    """One model and batch, and how much faster than padded TensorRT it has to be."""

    name: str
    layers: int
    hidden: int
    heads: int
    batch: int
    seq_len: int
    required_speedup: float


CASES = (
    Case("base, 16 x 512", 12, 768, 12, 16, 512, 1.8),
    Case("base, 16 x 128", 12, 768, 12, 16, 128, 1.25),
)


@dataclass(frozen=True)
class Measured:
    """Times in ms by way of running ("plain", "graph"), and the relative error of the hidden states."""

    times_ms: dict[str, float]
    error: float

    @property
    def best_ms(self) -> float:
        """The faster way."""
        return min(self.times_ms.values())


def relative_error(rows: list[Any], truth: list[torch.Tensor]) -> float:
    """Norm of the difference over the norm of the truth, over all valid tokens; NaN stays NaN."""
    ours = torch.cat([torch.as_tensor(np.asarray(row)).double() for row in rows])
    wanted = torch.cat(truth)
    return float((ours - wanted).norm() / wanted.norm())


def request_of(batch: Batch) -> dict[str, list[np.ndarray]]:
    """The batch as Session.run takes it."""
    return {
        "input_ids": batch.sequences(batch.input_ids),
        "token_type_ids": batch.sequences(batch.token_type_ids),
    }


def padded_arrays(batch: Batch, mask: torch.Tensor) -> dict[str, np.ndarray]:
    """The batch as the original takes it, padded to S."""
    return {
        "input_ids": batch.input_ids.numpy(),
        "attention_mask": mask.numpy(),
        "token_type_ids": batch.token_type_ids.numpy(),
    }


def time_backend(backend: Any) -> dict[str, float]:
    """Median GPU times of the batch uploaded last: plain, and in a CUDA graph where the engine can be captured."""
    backend.time_ms(10)
    times = {"plain": statistics.median(backend.time_ms(ITERATIONS))}
    if backend.can_capture:
        graph = backend.capture()
        backend.time_ms(10, graph=graph)
        times["graph"] = statistics.median(backend.time_ms(ITERATIONS, graph=graph))
        graph.close()
    return times


def measure_packed(path: Path, batch: Batch, truth: list[torch.Tensor]) -> Measured:
    """Answers and times of a packed plan."""
    with Session(path) as session:
        error = relative_error(session.run(request_of(batch))["last_hidden_state"], truth)
        return Measured(time_backend(session.backend), error)


def measure_padded(path: Path, batch: Batch, truth: list[torch.Tensor]) -> Measured:
    """Answers and times of a plan with the padded interface, at B x S."""
    with Session(path) as session:
        backend: Any = session.backend
        hidden = backend.run(padded_arrays(batch, batch.mask))["last_hidden_state"]
        rows = [row[:length] for row, length in zip(hidden, batch.lengths, strict=True)]
        return Measured(time_backend(backend), relative_error(rows, truth))


def measure_masks(path: Path, batch: Batch, model: Any) -> dict[str, float]:
    """Relative error of the padded engine under prefix, left-padded and holed masks, on the slots each mask keeps."""
    slots = torch.arange(batch.input_ids.shape[1])
    lengths = torch.tensor(batch.lengths).unsqueeze(1)
    holed = batch.mask * (torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(5)) < 0.7)
    masks = {"prefix": batch.mask, "left": (slots >= len(slots) - lengths).long(), "holes": holed}
    errors = {}
    with Session(path) as session:
        for name, mask in masks.items():
            backend: Any = session.backend
            hidden = backend.run(padded_arrays(batch, mask))["last_hidden_state"]
            with torch.inference_mode():
                truth = model.to("cuda", torch.float32)(
                    input_ids=batch.input_ids.cuda(),
                    attention_mask=mask.cuda(),
                    token_type_ids=batch.token_type_ids.cuda(),
                ).last_hidden_state.cpu()
            kept = mask.bool()
            errors[name] = relative_error([hidden[kept.numpy()]], [truth[kept].double()])
    return errors


def run_case(case: Case, folder: Path, timing_cache: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Builds, checks and times everything of one case; returns its record."""
    model = bert(case.layers, case.hidden, case.heads)
    batch = ragged_batch(case.batch, case.seq_len)
    say(f"{case.name}: {batch.num_tokens} tokens of {case.batch * case.seq_len} slots; exporting")
    onnx_path = folder / f"bert_{case.layers}x{case.hidden}.onnx"
    if not onnx_path.exists():
        export(model, onnx_path)
    truth = torch_peers.outputs(model, batch, torch.float32)
    plain = torch_peers.outputs(model, batch, torch.float16)
    torch_error = relative_error(plain, truth)

    shape = {"max_batch": case.batch, "max_seq_len": case.seq_len, "timing_cache": timing_cache}
    build_seconds: dict[str, float] = {}

    def build(name: str, make: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
        plan = folder / f"{name}.plan"
        start = time.monotonic()
        built = make(plan)
        build_seconds[name] = round(time.monotonic() - start, 1)
        say(f"  built {name} in {build_seconds[name]} s")
        return plan, built

    packed, built = build(
        "packed",
        lambda plan: build_engine(onnx_path, plan, precision="fp16", opt_tokens=batch.num_tokens, **shape),
    )
    wanted, held = built["plugins"], built["engine"]["plugin_layers"]
    if wanted != held:
        raise SystemExit(f"{case.name}: the engine holds plugin layers {held}, the graph asked for {wanted}")
    ours = measure_packed(packed, batch, truth)
    padded, _ = build(
        "padded", lambda plan: build_engine(onnx_path, plan, interface="padded", precision="fp16", **shape)
    )
    drop_in = measure_padded(padded, batch, truth)
    mask_errors = measure_masks(padded, batch, bert(case.layers, case.hidden, case.heads))
    peers: dict[str, dict[str, float]] = {}
    for typing in ("weak", "strong"):
        name = f"TensorRT padded ({typing}ly typed fp16)"
        plan, _ = build(
            f"original_{typing}", lambda plan, t=typing: build_padded_engine(onnx_path, plan, typing=t, **shape)
        )
        measured = measure_padded(plan, batch, truth)
        peers[name] = measured.times_ms
        say(f"  {name}: {measured.best_ms:.3f} ms, error {measured.error:.1e}")
    peers["torch.compile padded"] = torch_peers.compiled_ms(bert(case.layers, case.hidden, case.heads), batch)
    limit = torch_peers.gemm_limit_ms(model, batch.num_tokens)

    best_peers = {name: min(times.values()) for name, times in peers.items()}
    tensorrt_ms = min(time for name, time in best_peers.items() if name.startswith("TensorRT"))
    record = {
        "case": case.name,
        "tokens": batch.num_tokens,
        "slots": case.batch * case.seq_len,
        "ours_ms": round(ours.best_ms, 4),
        "peers_ms": {name: round(time, 4) for name, time in best_peers.items()},
        "limit_ms": round(limit, 4),
        "padded_interface_ms": round(drop_in.best_ms, 4),
        "speedup_over_tensorrt": round(tensorrt_ms / ours.best_ms, 3),
        "required_speedup": case.required_speedup,
        "error": ours.error,
        "padded_interface_errors": mask_errors,
        "torch_fp16_error": torch_error,
        "plugin_layers": held,
        "build_seconds": build_seconds,
        "all_times_ms": {"ours": ours.times_ms, **peers},
        **environment(),
    }
    worst = max(ours.error, drop_in.error, *mask_errors.values())
    record["passed"] = bool(
        worst <= MAX_ERROR_RATIO * torch_error and tensorrt_ms >= case.required_speedup * ours.best_ms
    )
    return record


def main() -> int:
    """Runs the cases; exit code 1 if one misses its error bound or its speed-up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append one line a case to this file")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    passed = True
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        for case in CASES:
            record = run_case(case, Path(name), arguments.timing_cache, say)
            passed = passed and record["passed"]
            if arguments.json:
                append_record(arguments.json, record)
            say(
                f"  padfree {record['ours_ms']:.3f} ms, limit {record['limit_ms']:.3f}, padded interface "
                f"{record['padded_interface_ms']:.3f}, peers {record['peers_ms']}, "
                f"{record['speedup_over_tensorrt']} x TensorRT; error {record['error']:.1e}, PyTorch fp16 "
                f"{record['torch_fp16_error']:.1e}; {'passed' if record['passed'] else 'MISSED'}"
            )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
