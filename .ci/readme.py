# SPDX-License-Identifier: Apache-2.0
"""A stranger without a GPU: gives the commands of the README and of the guide to ONNX files in order.

    .ci/readme.py        runs in the environment of the Python that runs it, where `pip install .` was done and no more

It says why some are not given. The two commands of the start are `.ci/run`'s first steps. Models that would come from
the hub are small ones here.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support import tour  # noqa: E402

NOT_RUN = {
    "git clone ADDRESS padfree": "this is a clone already",
    "cd padfree": "this is a clone already",
    "pip install .": "the first step of .ci/run, in this environment",
    "padfree demo": "the first step of .ci/run, in this environment",
    "pip install '.[test]'": "the second step of .ci/run, in an environment of its own",
    "pytest": "the second step of .ci/run, in an environment of its own",
    "pip install '.[trt]'": "1 to 2 GB that need a GPU",
    "padfree build sentence-transformers/all-MiniLM-L6-v2 -o minilm.plan": "needs a GPU",
    "padfree run minilm.plan --input texts.txt -o vectors.npz": "needs a GPU",
    "pip install 'optimum-onnx[onnxruntime]'": "3 GB with torch",
    "optimum-cli export onnx --model google-bert/bert-base-uncased --task feature-extraction model": "needs the hub",
    "padfree build model/model.onnx -o model.plan --max-batch 16 --max-seq-len 512": "needs a GPU",
}
"""A command -> why it is not given here."""


def main() -> int:
    """Gives the commands.

    Returns:
        1 after the first that fails, else 0.
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    blocks = [block for page in tour.TOUR for block in tour.blocks(page, "sh")]
    given = [shlex.join(words) for block in blocks for words in tour.commands(block)]
    with tempfile.TemporaryDirectory(prefix="padfree-readme-") as scratch:
        folder = tour.write_start(Path(scratch))
        (folder / "example.py").write_text(tour.python_example(), encoding="utf-8")
        for command in [*given, "python example.py"]:
            if command in NOT_RUN:
                print(f"not given: {command} ({NOT_RUN[command]})")
                continue
            print(f"$ {command}", flush=True)
            start = time.monotonic()
            status = subprocess.run(command, shell=True, cwd=folder, env=environment, check=False).returncode
            print(f"  {time.monotonic() - start:.1f} s", flush=True)
            if status:
                print(f"README: `{command}` ended with {status}")
                return 1
    print(f"README: {len(given) + 1 - len([command for command in given if command in NOT_RUN])} commands work here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
