# SPDX-License-Identifier: Apache-2.0
"""Engines with PadfreeLinear, norms folded or not, and with TensorRT's products: answers, and what the plans hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import build_engine
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

EXPORTED = DEMO_DATA / "bert_tiny.onnx"
VOCABULARY = 930
LENGTHS = ([128] * 8, [1], [3, 0, 5], [64, 65, 33, 2, 100], [17])
KEY_NUMBERS = 13  # of LinearTableKey in plugins/linear/tables.h
KINDS = (("padfree", "folded"), ("padfree", "separate"), ("tensorrt", "separate"))  # --linear, --norms
# For outputs of magnitude 1 to 4, rounded to 11 or 8 bits in every layer, with sums in another order.
TOLERANCES = {"fp16": 4e-2, "bf16": 3e-1}


@pytest.mark.parametrize("precision", TOLERANCES)
def test_all_kinds_of_gemms_agree(tmp_path: Path, precision: str) -> None:
    skip_elsewhere()
    plans = {kind: tmp_path / f"{'_'.join(kind)}.plan" for kind in KINDS}
    for (linear, norms), plan in plans.items():
        options = {"precision": precision, "max_batch": 8, "max_seq_len": 128}
        built = build_engine(EXPORTED, plan, linear=linear, norms=norms, **options)
        layers = built["engine"]["plugin_layers"]
        depth = layers["PadfreeAttention"]
        assert layers.get("PadfreeLinear", 0) == (4 * depth if linear == "padfree" else 0)
        assert layers["PadfreeLayerNorm"] == (1 if norms == "folded" else 2 * depth)
        assert (built["engine"]["linear"], built["engine"]["norms"]) == (linear, norms)
    assert plans["padfree", "folded"].read_bytes().count(b"choices") >= 1
    rng = np.random.default_rng(1)
    requests = [[rng.integers(0, VOCABULARY, length) for length in lengths] for lengths in LENGTHS]
    answers = [run(plan, requests) for plan in plans.values()]
    for found in answers[:-1]:
        for a, b in zip(found, answers[-1], strict=True):
            np.testing.assert_allclose(a, b, atol=TOLERANCES[precision])


def test_measurements_are_kept_beside_the_timing_cache(tmp_path: Path) -> None:
    skip_elsewhere()
    cache, plan = tmp_path / "timing.cache", tmp_path / "model.plan"
    command = [sys.executable, "-m", "padfree.builder.cli", "build", str(EXPORTED), "-o", str(plan), "--no-verify"]
    command += ["--precision", "fp16", "--max-batch", "8", "--max-seq-len", "128", "--timing-cache", str(cache)]
    subprocess.run(command, check=True)
    tables = tmp_path / "timing.cache.linear.json"
    kept = json.loads(tables.read_text("utf-8"))
    measured = [line.split() for line in kept["tables"].splitlines()]
    most = KEY_NUMBERS - 1  # the key's last number: the most tokens of the profile, as of the last range
    assert all(line[most] == line[-2] == "1024" for line in measured)
    planted = "".join(" ".join([*line[:KEY_NUMBERS], line[most], "0"]) + "\n" for line in measured)
    tables.write_text(json.dumps({**kept, "tables": planted}), "utf-8")
    subprocess.run(command, check=True)
    assert json.loads(tables.read_text("utf-8"))["tables"] == planted  # from the file, not measured again


def skip_elsewhere() -> None:
    from padfree.runtime.gpu.cuda import open_device  # it needs the CUDA bindings

    if open_device(0).compute_capability != "9.0":
        pytest.skip("padfree build takes PadfreeLinear by itself on Hopper alone")


def run(plan: Path, requests: list[list[np.ndarray]]) -> list[np.ndarray]:
    """All outputs of all sequences of all requests."""
    with Session(plan) as session:
        results = [session.run(request) for request in requests]
    return [np.asarray(row) for result in results for name in sorted(result) for row in result[name]]
