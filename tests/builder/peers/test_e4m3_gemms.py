# SPDX-License-Identifier: Apache-2.0
"""Peers with GEMMs in e4m3 by TensorRT: their files in onnxruntime, compared with padfree's own in fp8."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.builder import BuildError
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.peers import engines, onnxruntime_peers
from padfree.builder.peers.batch import draw_batch
from padfree.builder.peers.catalog import GPU_PEERS
from padfree.builder.peers.contender import Answers, UnavailableError, relative_error, rows_of
from padfree.builder.peers.e4m3_gemms import activation_scales, with_e4m3_gemms
from padfree.builder.peers.setup import PeerModel, Setup
from padfree.onnx_tools import save_model, standard_model
from padfree.onnx_tools.files.model import Model as OnnxModel
from padfree.onnx_tools.files.ort_session import open_session
from padfree.runtime import Session
from padfree.runtime.feeds import split_outputs

LAYERS, GEMMS = 2, 6
LEAST_COSINE = 0.99  # ours rounds the same factors, but with other scales of weights and with folded norms
LEAST_ERROR = 1e-2  # 3 bits cost 0.037 of a product, fp16 alone costs 1e-3 of an answer
MOST_ERROR = 1.3  # times our error; measured: 0.8 to 1.03

X, OUT, SIZE = "x", "out", 32


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    model = PeerModel(DEMO_DATA / "bert_tiny.onnx", "fp8")
    batch = draw_batch(model.metadata, [3, 24, 16, 9], 24)
    return Setup(model, batch, tmp_path_factory.mktemp("peers"), timing_cache=None)


@pytest.fixture(scope="module")
def truth(setup: Setup) -> Answers:
    return onnxruntime_peers.original_on_cpu(setup).answers


@pytest.fixture(scope="module")
def ours(setup: Setup) -> Answers:
    return onnxruntime_peers.packed_on_cpu(setup).answers


def check(answers: Answers, truth: Answers, ours: Answers) -> None:
    assert LEAST_ERROR < relative_error(answers, truth) < MOST_ERROR * relative_error(ours, truth)
    for name, wanted in ours.items():
        one, other = (rows_of(item).astype(np.float64) for item in (answers[name], wanted))
        cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
        assert cosines.mean() > LEAST_COSINE, name


@pytest.mark.parametrize("attention", [False, True])
def test_the_padded_file_rounds_what_ours_does(attention: bool, setup: Setup, truth: Answers, ours: Answers) -> None:
    result = engines.e4m3_of_padded(standard_model(setup.model.original), setup, attention=attention)
    onnx.checker.check_model(result)
    counts = Counter(node.op_type for node in result.graph.node)
    activations = LAYERS * (8 if attention else 4)  # query, key and value have one input; attention has four more
    assert (counts["QuantizeLinear"], counts["DequantizeLinear"]) == (activations, activations + LAYERS * GEMMS)
    assert (result.opset_import[0].version, weight_types(result)) == (19, {TensorProto.FLOAT8E4M3FN})
    session = open_session(OnnxModel.of(result))
    outputs = session.run(None, setup.batch.pad(setup.model.original_metadata))
    named = dict(zip([item.name for item in session.get_outputs()], outputs, strict=True))
    check(split_outputs(named, setup.batch.ragged, setup.model.original_metadata), truth, ours)


def test_the_packed_file_rounds_what_ours_does(setup: Setup, truth: Answers, ours: Answers, tmp_path: Path) -> None:
    result = engines.e4m3_of_packed(setup)
    counts = Counter(node.op_type for node in result.graph.node)
    assert (counts["QuantizeLinear"], counts["PadfreeAttention"], counts["PadfreeLinear"]) == (4 * LAYERS, LAYERS, 0)
    path = tmp_path / "packed.onnx"
    save_model(result, path)
    with Session(path) as session:
        answers = session.backend.run(session.feeds(setup.batch.ragged))
        check(split_outputs(answers, setup.batch.ragged, session.metadata), truth, ours)


def weight_types(model: onnx.ModelProto) -> set[int]:
    """The types of the initializers that DequantizeLinear reads."""
    types = {item.name: item.data_type for item in model.graph.initializer}
    read = {node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    return {types[name] for name in read if name in types}


def gemm(columns: int = SIZE, weight: float = 1e-6) -> onnx.ModelProto:
    """x [T,32] times a weight with numbers of up to `weight`, except for one column of zeros."""
    values = np.random.default_rng(0).uniform(-weight, weight, (SIZE, columns)).astype(np.float16)
    values[:, 0] = 0
    graph = helper.make_graph(
        [helper.make_node("MatMul", [X, "weight"], ["made"]), helper.make_node("Identity", ["made"], [OUT])],
        "product",
        [helper.make_tensor_value_info(X, TensorProto.FLOAT16, ["tokens", SIZE])],
        [helper.make_tensor_value_info(OUT, TensorProto.FLOAT16, ["tokens", columns])],
        [numpy_helper.from_array(values, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("size", [1e-6, 0.05, 3e4])
def test_weights_of_any_size_keep_their_numbers(size: float) -> None:
    """The scales of small weights are among fp16's smallest numbers and are rounded up, so that nothing is cut off."""
    feeds = {X: np.eye(SIZE, dtype=np.float16)}
    model = gemm(weight=size)
    result = with_e4m3_gemms(model, {X: 2.0**-8}, attention=False)
    (wanted,), (actual,) = (open_session(OnnxModel.of(each)).run(None, feeds) for each in (model, result))
    off = np.abs(actual.astype(np.float64) - wanted).max()
    assert off <= np.abs(wanted).max() * (2**-4 + 2**-7)
    assert not actual[:, 0].any()
    assert actual.any()


def test_gemms_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(BuildError, match="no GEMM with K and N in multiples of 16"):
        activation_scales(gemm(columns=24), "fp16", [{X: np.eye(SIZE, dtype=np.float16)}], attention=True)
    with pytest.raises(BuildError, match="reads 'x', which has no scale"):
        with_e4m3_gemms(gemm(), {"y": 1.0}, attention=False)


@pytest.mark.parametrize("name", ["tensorrt-fp8", "tensorrt-fp8-attention", "packed-tensorrt-fp8"])
def test_they_take_part_in_fp8_alone(name: str, setup: Setup) -> None:
    half = Setup(PeerModel(setup.model.path, "fp16"), setup.batch, setup.folder, timing_cache=None)
    with pytest.raises(UnavailableError, match=r"has GEMMs in e4m3, this is a comparison in fp16"):
        GPU_PEERS[name].make(half)
