# SPDX-License-Identifier: Apache-2.0
"""Verification and conversion of rewritten exports: they are equal, and no weight could be lost unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from padfree.onnx_tools import RewriteResult, VerificationError, load_model, rewrite
from padfree.onnx_tools.operators import with_functions

from tests.support.messages import convert, verify

ROOT = Path(__file__).resolve().parents[3]
FILES = [ROOT / "builder" / "demo" / "data" / "bert_tiny.onnx", *sorted((ROOT / "tests" / "fixtures").glob("*.onnx"))]


def metadata_of(result: RewriteResult) -> dict[str, Any]:
    (entry,) = [item for item in result.model.metadata_props if item.key == "padfree"]
    actual: dict[str, Any] = json.loads(entry.value)
    return actual


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_rewritten_exports_agree(file: Path, interface: str) -> None:
    original = load_model(file)
    result = rewrite(original, interface=interface, verify=False)
    errors = verify(original, result.model, metadata_of(result))
    assert set(errors) == {item.name for item in original.graph.output}
    assert max(errors.values()) < 1e-4


@pytest.mark.parametrize(
    ("file", "step"), [(FILES[0], 3), *(pytest.param(file, 1, marks=pytest.mark.slow) for file in FILES[:3])]
)
def test_every_weight_is_watched(file: Path, step: int) -> None:
    """The shorter test changes only some of them, which every layer has."""
    original = load_model(file)
    result = rewrite(original, verify=False)
    metadata = metadata_of(result)
    weights = [t for t in result.model.graph.initializer if t.data_type == 1 and np.prod(t.dims) > 1]
    assert len(weights) >= 20
    for tensor in weights[::step]:
        content = tensor.raw_data
        values = numpy_helper.to_array(tensor).copy()
        values[len(values) // 2 :] *= 1.01
        tensor.raw_data = values.tobytes()
        with pytest.raises(VerificationError, match="the original gives"):
            verify(original, result.model, metadata)
        tensor.raw_data = content
    verify(original, result.model, metadata)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_fp16_conversion_of_a_rewritten_export_is_close(file: Path) -> None:
    """onnxruntime computes fp16 in float32 between roundings to 2^-11: a few such roundings of outputs around 1."""
    model = rewrite(load_model(file), verify=False).model
    half = convert(model, "fp16")
    weights = {tensor.name: tensor.data_type for tensor in half.graph.initializer if np.prod(tensor.dims) > 1}
    assert onnx.TensorProto.FLOAT not in weights.values(), "every table and matrix is converted"
    rng = np.random.default_rng(0)
    lengths = np.array([5, 0, 21, 1], np.int32)
    feeds = {
        "input_ids": rng.integers(0, 256, 30).astype(np.int32),
        "token_type_ids": rng.integers(0, 2, 30).astype(np.int32),
        "seq_lens": lengths,
    }
    results = []
    for item, precision in ((model, "fp32"), (half, "fp16")):
        content = with_functions(item, precision).SerializeToString()
        results.append(ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds))
    for a, b in zip(*results, strict=True):
        assert b.dtype == np.float32
        kept = slice(0, 27) if len(a) == 30 else [0, 2, 3]
        scale = float(np.sqrt((a[kept] ** 2).mean()))
        assert np.abs(a[kept] - b[kept]).max() < 0.05 * scale
