# SPDX-License-Identifier: Apache-2.0
"""Wrong models do not pass: a change in a rewritten model is found, or changes its answers only by rounding.

Try more of them: PADFREE_TEST_MUTATIONS=500 PADFREE_TEST_SEED=7 pytest tests/onnx_tools/verification/test_mutations.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError, VerificationError, load_model, rewrite
from padfree.onnx_tools.operators import with_functions, without_functions
from padfree.onnx_tools.synthetic import bert_model
from padfree.onnx_tools.verification.half_precision import LARGEST_ERRORS
from padfree.onnx_tools.verification.sample_batches import sample_of

from tests.support.messages import check_outputs, convert, run, verify

from .mutations import mutate

COUNT = int(os.environ.get("PADFREE_TEST_MUTATIONS", 2))  # tests per model
SEED = int(os.environ.get("PADFREE_TEST_SEED", 0))
FAMILIES = Path(__file__).resolve().parents[2] / "fixtures" / "families"
NAMES = [
    "bert_dynamo_sdpa",
    "bert_cls_l2_torchscript",
    "nomic_bert_dynamo_sdpa",
    "t5_torchscript_sdpa",
    "bert_max_dynamo",
]
# As a share of a column's largest number. Changes that are found differ by more than 2e-4 of its root mean square on
# some of the samples; the largest difference on others may be a few times that.
FOUND = 2e-3
FOUND_IN_HALF = 3  # times half precision's tolerance


def special_columns() -> ModelProto:
    """A BERT whose logits are finfo.min for some labels, nearly always zero for others, and large for one."""
    model = bert_model(1, 32, 4, 64, vocab_size=60, max_positions=48)
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((32, 6)).astype(np.float32) * 0.2
    weight[:, 5] *= 1e4
    bias = np.asarray([0, 0, 0, -2, -2.5, 0], np.float32)
    graph = model.graph
    for name, value in (
        ("labels.weight", weight),
        ("labels.bias", bias),
        ("allowed", np.asarray([True, True, False, True, True, True])),
        ("signed", np.asarray([True, True, True, False, False, True])),
        ("lowest", np.asarray(np.finfo(np.float32).min)),
        ("nothing", np.asarray(0, np.float32)),
    ):
        graph.initializer.append(numpy_helper.from_array(value, name))
    graph.node.extend(
        [
            helper.make_node("MatMul", ["last_hidden_state", "labels.weight"], ["product"]),
            helper.make_node("Add", ["product", "labels.bias"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["positive"]),
            helper.make_node("Where", ["signed", "sum", "positive"], ["chosen"]),
            helper.make_node("Where", ["allowed", "chosen", "lowest"], ["logits"]),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, None))
    return model


def model_of(name: str) -> ModelProto:
    return special_columns() if name == "special" else load_model(FAMILIES / f"{name}.onnx")


def metadata_of(model: ModelProto) -> dict[str, Any]:
    return dict(json.loads(next(item.value for item in model.metadata_props if item.key == "padfree")))


def packed_batch(metadata: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = np.asarray([7, 1, 20, 3, 12, 2, 30], np.int32)
    feeds = {}
    for item in metadata["inputs"]:
        if item["role"] == "tokens":
            feeds[item["name"]] = rng.integers(0, item["limit"] or 2, int(lengths.sum())).astype(np.int32)
        else:
            feeds[item["name"]] = lengths if item["role"] == "seq_lens" else np.zeros(30, np.int32)
    return feeds


def effect(right: ModelProto, wrong: ModelProto, feeds: Mapping[str, np.ndarray]) -> float:
    """The largest difference of any ordinary number, as a share of the largest number of its column."""
    names = [value.name for value in right.graph.output]
    worst = 0.0
    for a, b in zip(run(with_functions(right), feeds, names), run(with_functions(wrong), feeds, names), strict=True):
        a, b = (item.reshape(-1, item.shape[-1] if item.ndim > 1 else 1).astype(np.float64) for item in (a, b))
        ordinary = np.isfinite(a) & (np.abs(a) < 1e30)
        if not np.array_equal(a[~ordinary], b[~ordinary], equal_nan=True) or not np.isfinite(b[ordinary]).all():
            return np.inf
        size = np.max(np.abs(a), axis=0, where=ordinary, initial=1e-3)
        worst = max(worst, float(np.max(np.where(ordinary, np.abs(a - b), 0) / size)))
    return worst


@pytest.mark.parametrize("name", [*NAMES, "special"])
def test_wrong_models_are_found(name: str) -> None:
    """In float32 rewrite's verification finds them, in half precision the check of the converted model."""
    original = model_of(name)
    result = rewrite(original, verify=False).model
    metadata = metadata_of(result)
    right = without_functions(result)
    verify(original, with_functions(right), metadata)
    sample = sample_of(original, metadata)
    rng = np.random.default_rng([SEED, sum(name.encode())])
    actual = 0
    for _ in range(COUNT):
        wrong, change = mutate(right, rng)
        difference = effect(right, wrong, packed_batch(metadata, 5))
        try:
            verify(original, with_functions(wrong), metadata)
        except VerificationError:
            actual += 1
        else:
            assert difference < FOUND, f"{name}: {change} passes, and is {difference:.2g} off"
        difference = effect(right, wrong, sample.feeds)
        for precision in ("fp16", "bf16"):
            try:
                check_outputs(right, convert(wrong, precision), precision, sample)
            except VerificationError:
                continue
            except RewriteError:  # numbers that overflow are refused before
                continue
            allowed = FOUND_IN_HALF * LARGEST_ERRORS[precision]
            assert difference < allowed, f"{name} in {precision}: {change} passes, and is {difference:.2g} off"
    assert actual
