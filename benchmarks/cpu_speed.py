# SPDX-License-Identifier: Apache-2.0
"""How much faster a packed file is than its original in onnxruntime on a CPU.

python benchmarks/cpu_speed.py [--layers 12] [--batch 8] [--length 128] [--mean 0.4] [--threads 2] prints one JSON line.
Both models run in turns in one process, after their answers have been compared; the times are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import onnxruntime as ort
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.synthetic import bert_model

TOLERANCE = 1e-4  # parts of the output's root mean square: both are float32


def lengths_for(batch: int, length: int, mean: float, seed: int) -> np.ndarray:
    """Lengths from 1 to `length` with the given mean: one is as long as it can be, the others are uniform below it."""
    rng = np.random.default_rng(seed)
    rest = (mean * batch - 1) / (batch - 1)
    drawn = rng.uniform(max(0.0, 2 * rest - 1), min(1.0, 2 * rest), batch - 1)
    drawn *= rest / drawn.mean()
    return np.concatenate([[length], np.clip(np.round(drawn * length), 1, length)]).astype(np.int32)


def session(model: bytes, threads: int) -> ort.InferenceSession:
    """A session as users get it, with a given number of threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Compares, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--mean", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    original = bert_model(options.layers, vocab_size=1000)
    result = rewrite(original, verify=False)
    sessions = [session(model.SerializeToString(), options.threads) for model in (original, result.model)]
    lengths = lengths_for(options.batch, options.length, options.mean, seed=0)
    mask = np.arange(options.length) < lengths[:, None]
    ids = np.random.default_rng(1).integers(0, 1000, mask.shape)
    padded = {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": np.zeros_like(ids)}
    packed = {name: values[mask].astype(np.int32) for name, values in padded.items() if name != "attention_mask"}
    feeds = [padded, {**packed, "seq_lens": lengths}]
    names = ["last_hidden_state"]
    wanted, found = (item.run(names, feed)[0] for item, feed in zip(sessions, feeds, strict=True))
    error = float(np.abs(wanted[mask] - found).max() / np.sqrt((wanted[mask] ** 2).mean()))
    if error > TOLERANCE:
        raise SystemExit(f"answers differ by {error:.1e} of an output, allowed is {TOLERANCE:.0e}")
    times: list[list[float]] = [[], []]
    for _ in range(options.repeats):
        for place, (item, feed) in enumerate(zip(sessions, feeds, strict=True)):
            started = time.perf_counter()
            item.run(names, feed)
            times[place].append(time.perf_counter() - started)
    before, after = (1000 * statistics.median(values) for values in times)
    print(
        json.dumps(
            {
                "layers": options.layers,
                "batch": options.batch,
                "length": options.length,
                "mean": round(float(lengths.mean() / options.length), 3),
                "threads": options.threads,
                "onnxruntime": ort.__version__,
                "original_ms": round(before, 1),
                "packed_ms": round(after, 1),
                "speed_up": round(before / after, 2),
                "largest_error": float(f"{error:.1e}"),
            }
        )
    )


if __name__ == "__main__":
    main()
