# SPDX-License-Identifier: Apache-2.0
"""What a rewrite costs: seconds and peak memory for a BERT-large-shaped file, without verification.

    python -m benchmarks.engine.rewrite_cost [--layers 24] [--hidden 1024] [--interface packed]

prints one JSON line. The rewrite runs in a process of its own, so that its peak memory is not that of making the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def peak_bytes() -> int:
    """Most memory that this process has had (getrusage would tell that of its parent where it was more)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def rewrite_file(path: Path, interface: str) -> dict[str, float | None]:
    """Rewrites a file in this process. Peak memory is that of the process, libraries included."""
    from padfree.onnx_tools import rewrite, save_model

    before = peak_bytes()
    started = time.perf_counter()
    result = rewrite(path, interface=interface, verify=False)
    seconds = time.perf_counter() - started
    peak = peak_bytes()
    target = path.with_name("rewritten.onnx")
    save_model(result.model, target)
    file_bytes, written = path.stat().st_size, sum(item.stat().st_size for item in path.parent.glob("rewritten.onnx*"))
    return {
        "file_bytes": file_bytes,
        "written_bytes": written,
        "seconds": round(seconds, 2),
        "peak_bytes": peak,
        "peak_over_file": round((peak - before) / file_bytes, 2),
        "packed_gemm_share": result.report.packed_gemm_share,
    }


def main() -> None:
    """Makes the file, rewrites it in another process, prints what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--interface", choices=("packed", "padded"), default="packed")
    parser.add_argument("--file", type=Path, help="rewrite this file in this process")
    options = parser.parse_args()
    if options.file is not None:
        print(json.dumps(rewrite_file(options.file, options.interface)))
        return
    from padfree.onnx_tools import save_model
    from padfree.onnx_tools.synthetic import bert_model

    with tempfile.TemporaryDirectory(prefix="padfree-") as folder:
        file = Path(folder) / "model.onnx"
        heads = options.hidden // 64
        save_model(bert_model(options.layers, options.hidden, heads, 4 * options.hidden), file)
        command = [sys.executable, "-m", "benchmarks.engine.rewrite_cost"]
        command += ["--file", str(file), "--interface", options.interface]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(json.dumps({"layers": options.layers, "hidden": options.hidden, "interface": options.interface, **result}))


if __name__ == "__main__":
    main()
