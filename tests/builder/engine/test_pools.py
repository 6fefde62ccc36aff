# SPDX-License-Identifier: Apache-2.0
"""Pooling that norms its rows and gives float32 by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.builder.engine.network import for_parser
from padfree.builder.engine.pools import merge_pools
from padfree.builder.folders.head import HeadOptions
from padfree.builder.folders.source import opened
from padfree.onnx_tools import rewrite, synthetic
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.operators import check_nodes, make_node, node_attributes, with_functions

from tests.support.samples import PLAIN_NORM, PLAIN_POOL

from .test_poolers import run_feeds

LENGTHS = np.array([0, 3, 3, 8], np.int32)


def embedding(
    dtype: type[np.floating] = np.float16,
    width: int = 16,
    norm: dict[str, int | float | str] | None = None,
    pool: dict[str, int | float | str] | None = None,
) -> onnx.ModelProto:
    """A norm of rows, their mean, divided by its length, in float32."""
    rng, kind = np.random.default_rng(0), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    norm = {**PLAIN_NORM, "has_beta": 1, **(norm or {})}
    added = [name for name in ("bias", "residual") if norm[f"has_{name}"]]
    made = ["y", "sum"] if norm["has_sum"] else ["y"]
    nodes = [
        make_node("PadfreeLayerNorm", ["x", *added, "gamma", "beta"], made, **norm),
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


def run(model: onnx.ModelProto) -> np.ndarray:
    x = (np.random.default_rng(1).standard_normal((9, 16)) * 3 + 1).astype(np.float16)
    (vectors,) = run_feeds(with_functions(model, "fp16"), {"x": x, "cu_seqlens": LENGTHS})
    return vectors


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("mode", ["mean", "first", "last"])
def test_a_pool_takes_norm_and_cast(rms: int, mode: str) -> None:
    model = embedding(norm={"rms": rms, "epsilon": 0.25}, pool={"mode": mode})
    expected = run(model)
    merge_pools(model)
    check_nodes(model)
    (pool,) = model.graph.node
    assert list(pool.input) == ["x", "cu_seqlens", "gamma", "beta"]
    assert list(pool.output) == ["vectors"]
    found = {name: node_attributes(pool)[name] for name in ("has_norm", "has_beta", "rms", "normalize", "results")}
    assert found == {"has_norm": 1, "has_beta": 1, "rms": rms, "normalize": 1, "results": "fp32"}
    np.testing.assert_allclose(run(model), expected, atol=2e-3)
    assert (run(model)[1] == 0).all()


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
    merge_pools(model)
    check_nodes(model)
    assert [node.op_type for node in model.graph.node] == ["PadfreeLayerNorm", "PadfreePool"]
    found = node_attributes(model.graph.node[1])
    assert (found["has_norm"], found["results"]) == (0, "fp32")


@pytest.mark.parametrize("tensor", ["y", "mean"])
@pytest.mark.parametrize("how", ["output", "reader"])
def test_what_others_read_stays(tensor: str, how: str) -> None:
    model = embedding()
    if how == "output":
        model.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT16, None))
    else:
        model.graph.node.append(helper.make_node("Neg", [tensor], ["negative"]))
    merge_pools(model)
    check_nodes(model)
    found = {node.op_type for node in model.graph.node}
    assert ("PadfreeLayerNorm" in found, "Cast" in found) == (tensor == "y", tensor == "mean")


@pytest.mark.parametrize("mode", ["mean", "lasttoken"])
def test_an_encoder_that_gives_vectors_ends_in_one_kernel(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    onnx.save(synthetic.bert_model(num_layers=1, hidden_size=64, num_heads=2, intermediate_size=128), str(path))
    with opened(path, HeadOptions((mode,), normalize=True)) as source:
        made = for_parser(with_linear(Model.of(rewrite(source.path, precision="fp16").model)).proto, 512)
    check_nodes(made)
    *_, down, pool = made.graph.node
    assert (down.op_type, pool.op_type) == ("PadfreeLinear", "PadfreePool")
    found = {name: node_attributes(pool)[name] for name in ("has_norm", "normalize", "results", "early_lengths")}
    assert found == {"has_norm": 1, "normalize": 1, "results": "fp32", "early_lengths": 1}
    assert list(pool.output) == ["sentence_embedding"]
