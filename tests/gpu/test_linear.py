# SPDX-License-Identifier: Apache-2.0
"""Engines with PadfreeLinear beside engines with TensorRT's products: the same answers, and what the plan holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from padfree.builder import build_engine
from padfree.builder.demo import DEMO_DATA
from padfree.runtime import Session

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

EXPORTED = DEMO_DATA / "bert_tiny.onnx"
VOCABULARY = 930
LENGTHS = ([128] * 8, [1], [3, 0, 5], [64, 65, 33, 2, 100], [17])
# Outputs of magnitude 1 to 4 that were rounded to 11 or 8 bits in every layer, in another order of sums.
TOLERANCES = {"fp16": 4e-2, "bf16": 3e-1}


@pytest.mark.parametrize("precision", TOLERANCES)
def test_both_kinds_of_products_agree(tmp_path: Path, precision: str) -> None:
    from padfree.runtime.cuda import open_device  # needs the CUDA bindings

    if open_device(0).compute_capability != "9.0":
        pytest.skip("PadfreeLinear has a kernel for Hopper alone")
    plans = {linear: tmp_path / f"{linear}.plan" for linear in ("padfree", "tensorrt")}
    for linear, plan in plans.items():
        built = build_engine(EXPORTED, plan, precision=precision, max_batch=8, max_seq_len=128, linear=linear)
        layers = built["engine"]["plugin_layers"]
        assert layers.get("PadfreeLinear", 0) == (4 * layers["PadfreeAttention"] if linear == "padfree" else 0)
        assert built["engine"]["linear"] == linear
    assert plans["padfree"].read_bytes().count(b"choices") >= 1
    rng = np.random.default_rng(1)
    with Session(plans["padfree"]) as ours, Session(plans["tensorrt"]) as theirs:
        for lengths in LENGTHS:
            request = [rng.integers(0, VOCABULARY, length) for length in lengths]
            found, wanted = ours.run(request), theirs.run(request)
            for name in wanted:
                for a, b in zip(found[name], wanted[name], strict=True):
                    np.testing.assert_allclose(a, b, atol=TOLERANCES[precision])
