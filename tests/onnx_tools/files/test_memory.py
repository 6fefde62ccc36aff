# SPDX-License-Identifier: Apache-2.0
"""The peak memory of rewriting, as a multiple of the weights: there are no more copies of them than necessary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from padfree.onnx_tools import load_model, save_model
from padfree.onnx_tools.files.model_file import open_model
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.rewrite import finish, rewrite_model, with_bodies
from padfree.onnx_tools.synthetic import bert_model

MOST = {"fp16": 2.7, "bf16": 3.2}
"""The weights, attention's joined projections, the same in half precision, and what the sample tokens need.

onnxruntime makes one more copy of bf16 weights, because numpy has no name for that type.
2.37 to 2.44 and 2.59 to 2.69 were measured on a busy machine; a copy of the weights in half precision adds 0.5.
"""
NO_HUGE_PAGES = 41  # PR_SET_THP_DISABLE: half-used memory is not counted as a whole huge page
CODE = f"""
import ctypes, sys
ctypes.CDLL(None).prctl({NO_HUGE_PAGES}, 1, 0, 0, 0)
from padfree.onnx_tools.files.model_file import open_model, save_model
from padfree.onnx_tools.files.weights import Storage
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.rewrite import rewrite_model, with_bodies
import padfree.onnx_tools.verification.verify

def most():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

path, precision, output = sys.argv[1:]
before = most()
given = open_model(path, Storage.MEMORY)
made = rewrite_model(given, RewriteOptions(precision=precision))
del given
save_model(with_bodies(made.model, made.precision), output)
print(most() - before)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "model.onnx"
    save_model(bert_model(4, 768, 12, 3072, vocab_size=12_000, max_positions=64), path, external_data_bytes=0)
    return path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc on this system: run it on Linux")
@pytest.mark.parametrize("precision", MOST)
def test_rewriting_takes_little_more_than_its_weights(file: Path, precision: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(file), precision, str(tmp_path / "packed.onnx")]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert int(done.stdout) < MOST[precision] * next(file.parent.glob("*.data")).stat().st_size


@pytest.mark.parametrize("outside", [False, True])
def test_weights_are_written_from_where_they_lie(tmp_path: Path, outside: bool) -> None:
    source, packed = tmp_path / "model.onnx", tmp_path / "packed.onnx"
    save_model(bert_model(1, 128, 4, 256, vocab_size=300, max_positions=64), source)
    rewritten = rewrite_model(open_model(source), RewriteOptions(precision="fp16", verify=False))
    save_model(with_bodies(rewritten.model, "fp16"), packed, external_data_bytes=0 if outside else 1 << 30)
    assert len(list(tmp_path.glob("*.data"))) == outside
    assert load_model(packed) == finish(rewritten.model, "fp16")
