# SPDX-License-Identifier: Apache-2.0
"""How much faster a packed file is than its original in onnxruntime on a CPU, on a model of BERT's shape.

    python -m benchmarks.engine.cpu_speed [--layers 12] [--batch 8] [--length 128] [--mean 0.4]

prints the record of `padfree bench`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from padfree.builder.bench.cases import BenchCase, measure
from padfree.onnx_tools import save_model
from padfree.onnx_tools.synthetic import bert_model


def main() -> None:
    """Compares, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--mean", type=float, default=0.4, help="mean length as a part of the longest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        path = Path(name) / f"bert_{options.layers}.onnx"
        save_model(bert_model(options.layers, vocab_size=1000), path)
        case = BenchCase(path, options.batch, options.length, options.mean * options.length, precision="fp32")
        record, result = measure(case, None, on_cpu=True, folder=Path(name), timing_cache=None)
    speed_up = min(record["peers_ms"].values()) / result.ours_ms
    print(json.dumps({**record, "speed_up": round(speed_up, 2)}))


if __name__ == "__main__":
    main()
