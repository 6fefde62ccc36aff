# SPDX-License-Identifier: Apache-2.0
"""The BERT made by numpy: operators of a TorchScript export, spread scores, and PyTorch's results with its weights."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.synthetic import bert_model

EXPORT = Path(__file__).resolve().parents[2] / "builder" / "demo" / "data" / "bert_tiny.onnx"
SIZES = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "vocab_size": 100}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str] | None = None) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(names, feeds))


def ragged_feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    lengths = np.array([13, 1, 7, 40])
    return {
        "input_ids": rng.integers(0, 100, (4, 40)),
        "attention_mask": (np.arange(40) < lengths[:, None]).astype(np.int64),
        "token_type_ids": rng.integers(0, 2, (4, 40)),
    }


def test_operators_that_compute_are_those_of_an_export() -> None:
    """Shape arithmetic, in which exports differ by a few nodes, does not count."""
    aside = {"Constant", "Shape", "Gather", "Unsqueeze", "Squeeze", "Concat", "Cast", "Range", "Identity", "And", "Mul"}
    aside |= {"GreaterOrEqual", "Add", "Reshape"}
    result, exported = (
        Counter(node.op_type for node in model.graph.node if node.op_type not in aside)
        for model in (bert_model(**SIZES), onnx.load(EXPORT))
    )
    assert result == exported


def test_agrees_with_an_export_that_has_the_same_weights() -> None:
    """Every weight of the synthetic model is put into PyTorch's export; both must give the same numbers."""
    exported = onnx.load(EXPORT)
    result = bert_model(**{**SIZES, "vocab_size": 930})
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in result.graph.initializer}
    linears = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    linears += ["intermediate.dense", "output.dense"]
    in_order = iter([f"encoder.layer.{layer}.{name}.MatMul" for layer in range(2) for name in linears])
    for tensor in exported.graph.initializer:
        name = tensor.name.removeprefix("bert.")
        if name.startswith("onnx::MatMul"):
            name = next(in_order)
        assert list(weights[name].shape) == list(tensor.dims)
        tensor.CopyFrom(numpy_helper.from_array(weights.pop(name), tensor.name))
    assert not weights
    feeds = ragged_feeds()
    kept = feeds["attention_mask"] != 0
    (a, a_pooled), (b, b_pooled) = run(result, feeds), run(exported, feeds)
    np.testing.assert_allclose(a[kept], b[kept], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(a_pooled, b_pooled, rtol=1e-4, atol=1e-4)
    assert a[kept].std() > 0.5


def test_model_is_valid_and_reproducible() -> None:
    model = bert_model(**SIZES, seed=5)
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString() == bert_model(**SIZES, seed=5).SerializeToString()
    assert model.SerializeToString() != bert_model(**SIZES, seed=6).SerializeToString()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        assert values.dtype == np.float32
        assert values.std() > 0.05, tensor.name


@pytest.mark.parametrize(("hidden_size", "num_heads"), [(64, 4), (256, 4)])
def test_attention_scores_spread(hidden_size: int, num_heads: int) -> None:
    model = bert_model(**{**SIZES, "hidden_size": hidden_size, "num_heads": num_heads})
    names = [node.input[0] for node in model.graph.node if node.op_type == "Softmax"]
    assert len(names) == 2
    for name in names:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    for scores in run(model, ragged_feeds(), names):
        assert scores[np.isfinite(scores)].std() >= 3


@pytest.mark.slow
def test_bert_base_is_made_in_seconds() -> None:
    """A minute of processor time is allowed, since test machines are shared; it takes about two seconds."""
    start = time.process_time()
    model = bert_model()
    assert time.process_time() - start < 60
    parameters = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert parameters == 109_482_240, "bert-base-uncased has as many"


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"num_layers": 0}, "num_layers is 0, allowed is 1"), ({"num_heads": 5}, "a multiple of num_heads \\(5\\)")],
)
def test_sizes_that_make_no_model_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        bert_model(**{**SIZES, **changes})
