# SPDX-License-Identifier: Apache-2.0
"""The rewriter on exported models: everything is packed, in both interfaces, and results stay the same."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.synthetic import bert_model

from tests.onnx_tools.agreement import assert_agree

FILES = sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("*.onnx"))
fixtures = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
interfaces = pytest.mark.parametrize("interface", ["packed", "padded"])


def test_there_are_fixtures() -> None:
    assert len(FILES) >= 6


@fixtures
@interfaces
def test_fixture(file: Path, interface: str) -> None:
    original = onnx.load(file)
    result = rewrite(original, interface=interface, strict=True, verify=False)
    plugins = result.report.plugins
    assert {op: plugins[op] for op in ("PadfreeEmbedding", "PadfreeAttention", "PadfreeLayerNorm")} == {
        "PadfreeEmbedding": 1,
        "PadfreeAttention": 2,
        "PadfreeLayerNorm": 4,
    }
    assert plugins.get("PadfreeUnpack", 0) == (1 if interface == "padded" and "bert" in file.stem else 0)
    assert plugins.get("PadfreePack", 0) == (3 if interface == "padded" else 0)
    assert not [miss for item in result.report.passes for miss in item.missed]
    assert_agree(original, result)


@fixtures
def test_verified_by_default(file: Path) -> None:
    result = rewrite(file, interface="packed")
    metadata = json.loads(next(item.value for item in result.model.metadata_props if item.key == "padfree"))
    assert metadata["interface"] == "packed"
    assert [(item["name"], item["role"]) for item in metadata["inputs"]] == [
        ("input_ids", "tokens"),
        ("token_type_ids", "tokens"),
        ("seq_lens", "seq_lens"),
    ]
    assert metadata["inputs"][1]["limit"] == 2
    assert metadata["num_layers"] == 2


def test_every_operator_of_a_two_layer_bert() -> None:
    model = bert_model(2, 32, 4, 64, vocab_size=50, max_positions=24)
    result = rewrite(model, strict=True)
    assert Counter(node.op_type for node in result.model.graph.node) == {
        "PadfreeSchedule": 1,
        "PadfreeEmbedding": 1,
        "PadfreeAttention": 2,
        "PadfreeLayerNorm": 4,
        "PadfreePool": 1,
        "MatMul": 8,  # QKV, output, intermediate and output of each layer
        "Add": 6,  # the biases of QKV and intermediate, and the 1 of the GELU
        "Div": 2,
        "Erf": 2,
        "Mul": 4,
        "Gemm": 1,
        "Tanh": 1,
    }
    metadata = json.loads(result.model.metadata_props[-1].value)
    assert (metadata["max_positions"], metadata["hidden_size"]) == (24, 32)
    assert metadata["inputs"][0]["limit"] == 50
    assert_agree(model, result)


def test_weights_are_stored_once() -> None:
    model = bert_model(2, 32, 4, 64, vocab_size=50, max_positions=24)

    def floats(graph: onnx.GraphProto) -> int:
        return sum(int(np.prod(t.dims)) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT)

    result = rewrite(model, verify=False)
    assert abs(floats(result.model.graph) - floats(model.graph)) < 32  # a few scalars of masks and scales differ


def test_same_result_every_time() -> None:
    first, second = (rewrite(FILES[0], verify=False).model for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_original_is_left_alone() -> None:
    model = onnx.load(FILES[0])
    before = model.SerializeToString(deterministic=True)
    rewrite(model, verify=False)
    assert model.SerializeToString(deterministic=True) == before


@interfaces
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_precision(interface: str, precision: str) -> None:
    result = rewrite(FILES[0], interface=interface, precision=precision)
    kind = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}[precision]
    tables = [t for t in result.model.graph.initializer if len(t.dims) == 2]
    assert tables
    assert {t.data_type for t in tables if t.data_type != onnx.TensorProto.INT64} == {kind}
    metadata = json.loads(result.model.metadata_props[-1].value)
    assert metadata["precision"] == precision
