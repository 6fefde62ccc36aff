# SPDX-License-Identifier: Apache-2.0
"""Runs one batch through run_plan and through padfree's Session and compares every output, on the plan's GPU.

Arguments: the program, as examples/cpp/CMakeLists.txt makes it, and a plan of the packed interface or of varseqlen.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from padfree.runtime import Session
from padfree.runtime.gpu import plugin_library

LENGTHS = (5, 1, 17, 128, 64)
HIGHEST_ID = 1000


def main() -> int:
    """Returns 0 where all outputs are the same bits: both run the same engine on the same batch."""
    program, plan = Path(sys.argv[1]), Path(sys.argv[2])
    rng = np.random.default_rng(0)
    with Session(plan, cuda_graphs=False) as session, tempfile.TemporaryDirectory() as folder:
        low, limit = min(5, HIGHEST_ID), session.metadata.ids_input().limit or HIGHEST_ID
        lengths = [min(length, session.metadata.longest or length) for length in LENGTHS]
        batch = [rng.integers(low, min(limit, HIGHEST_ID), length) for length in lengths]
        words = [",".join(map(str, ids)) for ids in batch]
        rows = {}
        for item in session.metadata.sequence_inputs():
            shape = (len(batch), *item.trailing_shape)
            numbers = rng.integers(0, item.limit or HIGHEST_ID, shape)
            rows[item.name] = numbers.astype(item.dtype)
            words.insert(0, f"{item.name}={','.join(map(str, numbers.ravel()))}")
        command = [str(program), str(plan), str(plugin_library.find()), "--save", folder, *words]
        print(subprocess.run(command, check=True, text=True, capture_output=True).stdout, end="")
        ids = {session.metadata.ids_input().name: np.concatenate(batch)}
        others = {item.name: np.zeros(sum(lengths), np.int32) for item in session.metadata.token_inputs()}
        expected = session.run_packed({**others, **ids, **rows}, lengths)
        worst = 0.0
        for item in session.metadata.outputs:
            wide = item.dtype == "bfloat16"  # which NumPy lacks: its bits are the first half of float32's
            array = np.fromfile(Path(folder) / f"{item.name}.bin", np.uint16 if wide else item.dtype)
            values = (array.astype(np.uint32) << 16).view(np.float32) if wide else array
            difference = np.abs(values.astype(np.float64) - expected[item.name].astype(np.float64).ravel()).max()
            print(f"{item.name}: largest difference {difference:.1e}")
            worst = max(worst, float(difference))
    return 0 if worst == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
