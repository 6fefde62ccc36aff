# SPDX-License-Identifier: Apache-2.0
"""Norms and embeddings that write rows in e4m3: the same bits as from a QuantizeLinear after them, in every variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.operators import DOMAIN, OPERATORS, make_node, with_functions
from padfree.onnx_tools.precision.widen import widen

from tests.support.samples import PLAIN_EMBEDDING, PLAIN_NORM

from .bodies import cu_of, rng

Feeds = dict[str, np.ndarray]
WIDTH = 21
LARGEST = 448.0
Y_SCALE = 2.0**-5
DTYPES = {"fp32": np.float32, "fp16": np.float16}
NORM: dict[str, Any] = {**PLAIN_NORM, "has_bias": 1, "has_residual": 1, "has_beta": 1, "has_sum": 1}
EMBEDDING: dict[str, Any] = {**PLAIN_EMBEDDING, "has_position_table": 1, "has_beta": 1}


def model_of(operator: str, feeds: Feeds, precision: str, opset: int, attributes: dict[str, Any]) -> ModelProto:
    """The operator alone; e4m3 comes out as float32. With results='act' a QuantizeLinear makes y_e4m3 from y."""
    spec = OPERATORS[operator]
    items = [item.name for item in spec.outputs_for(attributes)]
    nodes = [make_node(operator, [item.name for item in spec.inputs_for(attributes)], items, name="node", **attributes)]
    scale = numpy_helper.from_array(np.asarray(attributes["y_scale"], DTYPES[precision]), "scale")
    zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])
    if attributes["results"] == "act":
        nodes.append(helper.make_node("QuantizeLinear", ["y", "scale", "zero"], ["y_e4m3"]))
        items.insert(1, "y_e4m3")
    nodes += [helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT) for name in items]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), [f"{name}_{axis}" for axis in range(value.ndim)]
            )
            for name, value in feeds.items()
        ],
        [helper.make_tensor_value_info(f"{name}_float", TensorProto.FLOAT, None) for name in items],
        [scale, zero],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return with_functions(helper.make_model(graph, opset_imports=imports, ir_version=10), precision)


def run(model: ModelProto, feeds: Feeds) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def norm_feeds(lead: tuple[int, ...], dtype: type) -> Feeds:
    r = rng()
    return {
        "x": (r.standard_normal((*lead, WIDTH)) + 1).astype(dtype),
        "bias": r.standard_normal(WIDTH).astype(dtype),
        "residual": r.standard_normal((*lead, WIDTH)).astype(dtype),
        "gamma": (r.standard_normal(WIDTH) * 20).astype(dtype),
        "beta": r.standard_normal(WIDTH).astype(dtype),
    }


def embedding_feeds(batch: str, dtype: type) -> Feeds:
    cu, tokens = cu_of(batch)
    r = rng()
    return {
        "ids": r.integers(-2, 13, tokens).astype(np.int32),
        "cu_seqlens": cu,
        "word_table": r.standard_normal((11, WIDTH)).astype(dtype),
        "position_table": r.standard_normal((20, WIDTH)).astype(dtype),
        "gamma": (r.standard_normal(WIDTH) * 20).astype(dtype),
        "beta": r.standard_normal(WIDTH).astype(dtype),
    }


CASES = [
    *[("PadfreeLayerNorm", NORM, norm_feeds, lead) for lead in ((0,), (1,), (300,), (2, 3))],
    *[("PadfreeEmbedding", EMBEDDING, embedding_feeds, batch) for batch in ("filler and empty", "all empty, no token")],
]


@pytest.mark.parametrize("opset", [19, 23])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("y_scale", [2.0**-14, Y_SCALE, 1.0, 2.0**10], ids=str)
@pytest.mark.parametrize(("operator", "attributes", "feeds_of", "size"), CASES, ids=lambda item: str(item)[:20])
def test_rows_are_those_of_quantize_linear(
    opset: int, precision: str, y_scale: float, operator: str, attributes: dict[str, Any], feeds_of: Any, size: Any
) -> None:
    feeds = feeds_of(size, DTYPES[precision])
    collected = {
        results: run(
            model_of(operator, feeds, precision, opset, {**attributes, "results": results, "y_scale": y_scale}), feeds
        )
        for results in ("act", "e4m3", "both")
    }
    for a, b in zip(collected["act"], collected["both"], strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(collected["act"][1:], collected["e4m3"], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("results", ["e4m3", "both"])
@pytest.mark.parametrize(("operator", "attributes", "feeds_of", "size"), CASES[2::2], ids=lambda item: str(item)[:20])
def test_a_file_in_half_precision_runs_in_float32(
    operator: str, attributes: dict[str, Any], feeds_of: Any, size: Any, results: str
) -> None:
    """Its bodies, when widened, are full of casts from float32 to float32."""
    feeds, chosen = feeds_of(size, np.float32), {**attributes, "results": results, "y_scale": Y_SCALE}
    widened = widen(Model(model_of(operator, feeds, "fp16", 19, chosen))).proto
    for a, b in zip(run(model_of(operator, feeds, "fp32", 19, chosen), feeds), run(widened, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("operator", "attributes", "feeds_of", "size"), CASES[2::2], ids=lambda item: str(item)[:20])
def test_rows_saturate_and_filler_is_zero(operator: str, attributes: dict[str, Any], feeds_of: Any, size: Any) -> None:
    feeds = feeds_of(size, np.float16)
    chosen = {**attributes, "results": "both", "y_scale": Y_SCALE}
    y, narrow, *_ = run(model_of(operator, feeds, "fp16", 19, chosen), feeds)
    assert (np.abs(y) > 20).any()
    np.testing.assert_array_equal(np.abs(narrow[np.abs(y) > 20]), LARGEST)
    if operator == "PadfreeEmbedding":
        filler = feeds["cu_seqlens"][-1]
        assert len(narrow) > filler
        assert not narrow[filler:].any()


@pytest.mark.parametrize(("operator", "attributes"), [("PadfreeLayerNorm", NORM), ("PadfreeEmbedding", EMBEDDING)])
@pytest.mark.parametrize("change", [{"results": "fp8"}, {"y_scale": 0.0}, {"y_scale": 2.0**15}], ids=str)
def test_other_results_are_refused(operator: str, attributes: dict[str, Any], change: dict[str, Any]) -> None:
    chosen = {**attributes, "results": "both", "y_scale": 1.0}
    inputs = [item.name for item in OPERATORS[operator].inputs_for(chosen)]
    outputs = [item.name for item in OPERATORS[operator].outputs_for(chosen)]
    make_node(operator, inputs, outputs, name="node", **chosen)
    with pytest.raises(RewriteError, match=f"{operator} 'node': attribute '{next(iter(change))}' is"):
        make_node(operator, inputs, outputs, name="node", **{**chosen, **change})


def test_old_opsets_are_refused() -> None:
    with pytest.raises(RewriteError, match="PadfreeLayerNorm with e4m3 needs opset 19 or newer, the model has 18"):
        model_of(
            "PadfreeLayerNorm", norm_feeds((2,), np.float16), "fp16", 18, {**NORM, "results": "e4m3", "y_scale": 1.0}
        )
