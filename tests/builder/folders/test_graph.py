# SPDX-License-Identifier: Apache-2.0
"""Heads in graphs of every opset, in onnxruntime, against NumPy: any mask, and half precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.builder import BuildError
from padfree.builder.folders.graph import add_head
from padfree.builder.folders.head import ACTIVATIONS, POOLINGS, Dense, Head, Normalize, Truncate, VectorNorm

from tests.support.folders import pool

Array = npt.NDArray[Any]

ROWS, WIDTH, SEED = 20, 8, 0
OPSETS = (11, 13, 18, 21)
TOLERANCE = 2e-6
IDS = np.asarray([[3, 4, 5, 6, 7], [8, 9, 1, 0, 0], [0, 0, 11, 12, 13]], np.int64)
MASKS = {
    "right": np.asarray([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], np.int64),
    "left": np.asarray([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]], np.int64),
}


def encoder(opset: int, dtype: int = TensorProto.FLOAT) -> ModelProto:
    """A stand-in for an encoder, whose hidden states are rows of a table."""
    table = np.random.default_rng(SEED).standard_normal((ROWS, WIDTH), np.float32)
    values = table.astype(helper.tensor_dtype_to_np_dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["B", "S"])
            for name in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("last_hidden_state", dtype, ["B", "S", WIDTH])],
        [numpy_helper.from_array(values, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: ModelProto, mask: Array) -> tuple[Array, Array]:
    """The rows, and the head's vectors."""
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = ["last_hidden_state", "sentence_embedding"]
    rows, vectors = session.run(names, {"input_ids": IDS, "attention_mask": mask})
    return rows.astype(np.float32), vectors


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("mode", POOLINGS)
def test_ways_of_pooling(mode: str, opset: int, mask: str) -> None:
    model = encoder(opset)
    add_head(model, Head(pooling=(mode,)), ("last_hidden_state", "sentence_embedding"))
    rows, actual = run(model, MASKS[mask])
    wanted = [pool(row[kept == 1], mode, np.flatnonzero(kept) + 1) for row, kept in zip(rows, MASKS[mask], strict=True)]
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)


@pytest.mark.parametrize("opset", OPSETS)
def test_steps_on_vectors(opset: int) -> None:
    rng = np.random.default_rng(SEED)
    weight, bias, residual = (rng.standard_normal(shape, np.float32) for shape in ((4, WIDTH), (4,), (4, WIDTH)))
    gamma, beta = rng.standard_normal(4, np.float32), rng.standard_normal(4, np.float32)
    steps = (Dense(weight, bias, "tanh", adds=True, residual=residual), VectorNorm(gamma, beta, 1e-5), Normalize())
    model = encoder(opset)
    add_head(model, Head(pooling=("mean",), steps=steps), ("last_hidden_state", "sentence_embedding"))
    rows, actual = run(model, MASKS["right"])
    for row, kept, vector in zip(rows, MASKS["right"], actual, strict=True):
        x = pool(row[kept == 1], "mean")
        x = np.tanh(weight @ x + bias) + residual @ x
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * gamma + beta
        np.testing.assert_allclose(vector, x / np.linalg.norm(x), atol=TOLERANCE)


@pytest.mark.parametrize("activation", ACTIVATIONS.values())
def test_activations(activation: str) -> None:
    erf = np.vectorize(math.erf)
    functions = {
        "identity": lambda x: x,
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    }
    model = encoder(OPSETS[-1])
    dense = Dense(np.eye(WIDTH, dtype=np.float32), None, activation)
    add_head(model, Head(pooling=("cls",), steps=(dense,)), ("last_hidden_state", "sentence_embedding"))
    rows, actual = run(model, MASKS["right"])
    np.testing.assert_allclose(actual, functions[activation](rows[:, 0]), atol=TOLERANCE)


def test_half_precision_rows_are_pooled_in_fp32() -> None:
    model = encoder(OPSETS[-1], TensorProto.FLOAT16)
    add_head(model, Head(pooling=("mean",)), ("last_hidden_state", "sentence_embedding"))
    rows, actual = run(model, MASKS["left"])
    assert actual.dtype == np.float32
    wanted = [pool(row[kept == 1], "mean") for row, kept in zip(rows, MASKS["left"], strict=True)]
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)


def test_what_a_head_needs_is_named() -> None:
    with pytest.raises(BuildError, match=r"none has scores \[B,N\], which the head needs; export it with logits"):
        add_head(encoder(OPSETS[-1]), Head(scores="sigmoid"))
    with pytest.raises(BuildError, match="--outputs logits: the model has last_hidden_state, sentence_embedding"):
        add_head(encoder(OPSETS[-1]), Head(pooling=("mean",)), ("logits",))


@pytest.mark.parametrize("opset", OPSETS)
def test_vectors_of_an_exported_chain_are_cut(opset: int) -> None:
    model = encoder(opset)
    model.graph.node.append(helper.make_node("Abs", ["rows_0"], ["sentence_embedding"]))
    model.graph.node.insert(1, helper.make_node("Gather", ["last_hidden_state", "first"], ["rows_0"], axis=1))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(0), "first"))
    model.graph.output.append(helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["B", WIDTH]))
    add_head(
        model, Head(pooling=("mean",), steps=(Normalize(), Truncate(3))), ("last_hidden_state", "sentence_embedding")
    )
    rows, actual = run(model, MASKS["right"])
    np.testing.assert_array_equal(actual, np.abs(rows[:, 0])[:, :3])
