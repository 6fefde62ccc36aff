# SPDX-License-Identifier: Apache-2.0
"""Pooling that normalizes its rows and gives float32 by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.builder.engine.lowering.pools import merge_pools
from padfree.builder.folders.head import HeadOptions
from padfree.builder.folders.source import opened
from padfree.onnx_tools import rewrite, synthetic
from padfree.onnx_tools.operators import check_nodes, make_node, node_attributes, padfree_nodes, with_functions

from tests.support.messages import for_parser, leave, lower, with_linear
from tests.support.samples import PLAIN_NORM, PLAIN_POOL

from .built_models import run_feeds

LENGTHS = np.array([0, 3, 3, 8], np.int32)


def embedding(
    dtype: type[np.floating] = np.float16,
    width: int = 16,
    norm: dict[str, int | float | str] | None = None,
    pool: dict[str, int | float | str] | None = None,
) -> onnx.ModelProto:
    """A norm of rows, and their mean, divided by its length, in float32."""
    rng, kind = np.random.default_rng(0), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    norm = {**PLAIN_NORM, "has_beta": 1, **(norm or {})}
    added = [name for name in ("bias", "residual") if norm[f"has_{name}"]]
    items = ["y", "sum"] if norm["has_sum"] else ["y"]
    nodes = [
        make_node("PadfreeLayerNorm", ["x", *added, "gamma", "beta"], items, **norm),
        make_node("PadfreePool", ["y", "cu_seqlens"], ["mean"], **{**PLAIN_POOL, "normalize": 1, **(pool or {})}),
        helper.make_node("Cast", ["mean"], ["vectors"], to=TensorProto.FLOAT),
    ]
    weights = [
        numpy_helper.from_array(rng.standard_normal(width).astype(dtype), name)
        for name in ("gamma", "beta", *(["bias"] if "bias" in added else []))
    ]
    inputs = [helper.make_tensor_value_info(name, kind, ["T", width]) for name in ("x", *added[-1:]) if name != "bias"]
    inputs.append(helper.make_tensor_value_info("cu_seqlens", TensorProto.INT32, ["N"]))
    outputs = [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["B", width])]
    graph = helper.make_graph(nodes, "vectors", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def pool_of_normed_rows(
    pool: dict[str, int | float | str], norm: dict[str, int | float | str] | None = None
) -> onnx.ModelProto:
    """A pool of rows, the norm of its results, and a cast to float32."""
    model = embedding(norm=norm, pool={"normalize": 0, **pool})
    normed, pooled, _ = model.graph.node
    pooled.input[0], pooled.output[0] = "x", "taken"
    normed.input[0], normed.output[0] = "taken", "mean"
    model.graph.node.insert(0, pooled)
    del model.graph.node[2]
    return model


def run(model: onnx.ModelProto, rows: int = 9) -> np.ndarray:
    x = (np.random.default_rng(1).standard_normal((rows, 16)) * 3 + 1).astype(np.float16)
    (vectors,) = run_feeds(with_functions(model, "fp16"), {"x": x, "cu_seqlens": LENGTHS})
    return vectors


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("mode", ["mean", "first", "last"])
def test_a_pool_takes_norm_and_cast(rms: int, mode: str) -> None:
    model = embedding(norm={"rms": rms, "epsilon": 0.25}, pool={"mode": mode})
    expected = run(model)
    lower(merge_pools, model)
    check_nodes(model)
    (pool,) = model.graph.node
    assert list(pool.input) == ["x", "cu_seqlens", "gamma", "beta"]
    assert list(pool.output) == ["vectors"]
    results = {name: node_attributes(pool)[name] for name in ("has_norm", "has_beta", "rms", "normalize", "results")}
    assert results == {"has_norm": 1, "has_beta": 1, "rms": rms, "normalize": 1, "results": "fp32"}
    np.testing.assert_allclose(run(model), expected, atol=2e-3)
    assert (run(model)[1] == 0).all()


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("mode", ["first", "last", "each"])
def test_a_pool_of_rows_takes_the_norm_after_it(rms: int, mode: str) -> None:
    """An empty sequence then gives zeros; without the merge it gave the norm of zeros, which is beta."""
    model, rows = pool_of_normed_rows({"mode": mode}, {"rms": rms, "epsilon": 0.25}), 3 if mode == "each" else 9
    expected = run(model, rows)
    lower(merge_pools, model)
    check_nodes(model)
    (pool,) = model.graph.node
    assert (list(pool.input), list(pool.output)) == (["x", "cu_seqlens", "gamma", "beta"], ["vectors"])
    names = ("mode", "has_norm", "has_beta", "rms", "normalize", "results")
    assert [node_attributes(pool)[name] for name in names] == [mode, 1, 1, rms, 0, "fp32"]
    assert node_attributes(pool)["epsilon"] == 0.25
    vectors, some = run(model, rows), np.diff(LENGTHS) > 0
    np.testing.assert_allclose(vectors[some], expected[some], atol=4e-3)
    assert (vectors[~some] == 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"pool": {"mode": "mean"}},
        {"pool": {"mode": "max"}},
        {"pool": {"mode": "first", "normalize": 1}},
        {"pool": {"mode": "each", "normalize": 1}},
        {"pool": {"mode": "first"}, "norm": {"has_bias": 1}},
        {"pool": {"mode": "first"}, "norm": {"has_residual": 1}},
        {"pool": {"mode": "first"}, "norm": {"has_sum": 1}},
    ],
    ids=str,
)
def test_a_norm_after_a_pool_stays_where_it_is_none_of_a_row(options: dict[str, Any]) -> None:
    model = pool_of_normed_rows(**options)
    lower(leave, model)
    before = model.SerializeToString()
    lower(merge_pools, model)
    assert model.SerializeToString() == before


def test_a_pool_takes_one_norm() -> None:
    """A pool between two norms takes the one before it; rows that are also read elsewhere keep their norm."""
    model = pool_of_normed_rows({"mode": "first"})
    model.graph.node.insert(0, make_node("PadfreeLayerNorm", ["z", "gamma"], ["x"], **PLAIN_NORM))
    model.graph.input[0].name = "z"
    lower(merge_pools, model)
    check_nodes(model)
    assert [node.op_type for node in model.graph.node] == ["PadfreePool", "PadfreeLayerNorm", "Cast"]
    shared = pool_of_normed_rows({"mode": "first"})
    shared.graph.output.append(helper.make_tensor_value_info("taken", TensorProto.FLOAT16, None))
    lower(merge_pools, shared)
    assert [node.op_type for node in shared.graph.node] == ["PadfreePool", "PadfreeLayerNorm", "Cast"]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": np.float32},
        {"width": 12},
        {"width": 1032},
        {"norm": {"has_residual": 1}},
        {"norm": {"has_bias": 1}},
        {"norm": {"has_sum": 1}},
        {"pool": {"mode": "max"}},
    ],
    ids=str,
)
def test_a_norm_stays_where_the_pool_has_no_kernel_for_it(options: dict[str, object]) -> None:
    model = embedding(**options)  # type: ignore[arg-type]
    lower(merge_pools, model)
    check_nodes(model)
    assert [node.op_type for node in model.graph.node] == ["PadfreeLayerNorm", "PadfreePool"]
    actual = node_attributes(model.graph.node[1])
    assert (actual["has_norm"], actual["results"]) == (0, "fp32")


@pytest.mark.parametrize("tensor", ["y", "mean"])
@pytest.mark.parametrize("how", ["output", "reader"])
def test_what_others_read_stays(tensor: str, how: str) -> None:
    model = embedding()
    if how == "output":
        model.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT16, None))
    else:
        model.graph.node.append(helper.make_node("Neg", [tensor], ["negative"]))
    lower(merge_pools, model)
    check_nodes(model)
    results = {node.op_type for node in model.graph.node}
    assert ("PadfreeLayerNorm" in results, "Cast" in results) == (tensor == "y", tensor == "mean")


@pytest.mark.parametrize("mode", ["mean", "lasttoken", "cls"])
def test_an_encoder_that_gives_vectors_ends_in_one_kernel(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    onnx.save(synthetic.bert_model(num_layers=1, hidden_size=64, num_heads=2, intermediate_size=128), str(path))
    with opened(path, HeadOptions((mode,), normalize=True)) as source:
        rewritten = for_parser(with_linear(rewrite(source.path, precision="fp16").model), 512)
    check_nodes(rewritten)
    *_, down, pool = rewritten.graph.node
    assert (down.op_type, pool.op_type) == ("PadfreeLinear", "PadfreePool")
    results = {name: node_attributes(pool)[name] for name in ("has_norm", "normalize", "results", "early_lengths")}
    assert results == {"has_norm": 1, "normalize": 1, "results": "fp32", "early_lengths": 1}
    assert list(pool.output) == ["sentence_embedding"]
    assert node_attributes(pool)["mode"] == {"lasttoken": "each", "cls": "each"}.get(mode, mode)


@pytest.mark.parametrize("normalize", [True, False])
def test_pools_of_first_tokens_take_the_norms_that_are_left(normalize: bool, tmp_path: Path) -> None:
    """The norm of the last layer's sum follows its pool, and the last norm precedes its own pool."""
    path = tmp_path / "encoder.onnx"
    onnx.save(synthetic.bert_model(2, 64, 2, 128, vocab_size=100), str(path))
    with opened(path, HeadOptions(("cls",), normalize=normalize)) as source:
        apart = with_linear(rewrite(source.path, precision="fp16").model)
    rewritten = for_parser(apart, 512)
    check_nodes(rewritten)
    results = [(node.op_type, node_attributes(node)) for node in padfree_nodes(rewritten.graph)]
    names = ("mode", "has_norm", "has_beta", "normalize", "results", "early_lengths")
    assert [tuple(item[name] for name in names) for op, item in results if op == "PadfreePool"] == [
        ("first", 0, 0, 0, "act", 0),
        ("first", 1, 1, 0, "act", 1),
        ("each", 1, 1, int(normalize), "fp32", 1),
    ]
    assert [op for op, _ in results][-5:] == ["PadfreePool", *["PadfreeLinear"] * 3, "PadfreePool"]
    assert [
        node.op_type for node in rewritten.graph.node if node.op_type in ("PadfreeLayerNorm", "MatMul", "Cast")
    ] == []
    assert [node.op_type for node in apart.graph.node].count("PadfreeLayerNorm") == 2
    lengths = np.array([3, 0, 9, 1, 0], np.int32)
    rng = np.random.default_rng(0)
    feeds = {item.name: rng.integers(0, 2, lengths.sum()).astype(np.int32) for item in apart.graph.input}
    feeds["input_ids"] = rng.integers(0, 100, lengths.sum()).astype(np.int32)
    feeds["seq_lens"] = lengths
    (wanted,), (vectors,) = (run_feeds(with_functions(item, "fp16"), feeds) for item in (apart, rewritten))
    np.testing.assert_allclose(vectors, wanted, rtol=2e-3, atol=2e-3)
    assert (vectors[lengths == 0] == 0).all()
    if normalize:
        np.testing.assert_allclose(np.linalg.norm(vectors[lengths > 0], axis=1), 1, atol=1e-5)
