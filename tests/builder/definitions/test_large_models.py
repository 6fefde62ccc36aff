# SPDX-License-Identifier: Apache-2.0
"""Weights that would not fit into memory in float32 are read when they are needed, and models run part by part.

Tiny models are taken for large ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from padfree.builder.calibration import Calibration, quantized_model
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder
from padfree.onnx_tools.errors import VerificationError
from padfree.onnx_tools.files import ort_session, staged_session
from padfree.onnx_tools.files.deferred_data import DeferredData
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session, parts_of
from padfree.onnx_tools.files.weights import Storage
from padfree.onnx_tools.operators import with_functions
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.precision import rounding
from padfree.onnx_tools.rewrite import finish, rewrite_model
from padfree.onnx_tools.verification.verify import verify_ids

from tests.support import tiny_folders

NAMES = (
    "bert_bfloat16",
    "bert_float16",
    "roberta",
    "qwen3_bfloat16",
    "modernbert",
    "nomic_experts",
    "jinav3_hub_query",
)
QUICK = ("bert_float16", "roberta", "qwen3_bfloat16", "nomic_experts", "jinav3_hub_query")
HALF = (  # in the type of the weights, and in another one
    ("bert_bfloat16", "fp16"),
    ("bert_float16", "fp16"),
    ("bert_float16", "bf16"),
    ("qwen3_bfloat16", "bf16"),
    ("modernbert", "fp16"),
    ("nomic_experts", "bf16"),
)


def model_of(name: str, folder: Path, storage: Storage = Storage.MEMORY) -> Model:
    reference = tiny_folders.read(name)
    if not folder.exists():
        tiny_folders.write_reference(reference, folder)
    return write_defined(read_folder(folder), adapter=reference.adapter).model(storage)


def deferred_values(model: Model) -> list[DeferredData]:
    held = (model.weights.held_for(tensor) for tensor in model.proto.graph.initializer)
    return [item for item in held if isinstance(item, DeferredData)]


def verification_of(model: ModelProto) -> Any:
    return read_metadata(model, AssertionError)["verification"]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("bert_bfloat16", "bf16"),
        *(pytest.param(name, "fp32", marks=[pytest.mark.slow] * (name not in QUICK)) for name in NAMES),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in HALF),
    ],
)
def test_files_are_those_of_small_models(
    name: str, precision: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options = RewriteOptions(precision=precision)
    small = rewrite_model(model_of(name, tmp_path / "model"), options)
    wanted = finish(small.model, precision)
    assert not deferred_values(small.model)
    request.getfixturevalue("large")
    large = rewrite_model(model_of(name, tmp_path / "model", Storage.MAP), options)
    keeps_type = (
        precision == "fp32" or tiny_folders.read(name).dtype == {"fp16": "float16", "bf16": "bfloat16"}[precision]
    )
    assert bool(deferred_values(large.model)) == keeps_type
    result = finish(large.model, precision)
    weights, others = ({item.name: item for item in model.graph.initializer} for model in (wanted, result))
    assert weights.keys() == others.keys()
    for key, tensor in weights.items():
        assert tensor.SerializeToString() == others[key].SerializeToString()
    measured = verification_of(result)
    assert measured["parts"] > 5
    assert "parts" not in verification_of(wanted)
    for output, error in verification_of(wanted)["errors"].items():
        assert measured["errors"][output] < 10 * error + 1e-6


@pytest.mark.usefixtures("large")
def test_a_model_is_large_whose_halves_alone_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that stay float32 count when it is decided what is deferred, and are not among those that are rounded."""
    monkeypatch.setattr(rounding, "LARGE_MODEL_BYTES", 1 << 30)
    result = rewrite_model(model_of("bert_bfloat16", tmp_path / "model", Storage.MAP), RewriteOptions(precision="bf16"))
    assert verification_of(finish(result.model, "bf16"))["parts"] > 5


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["qwen3_bfloat16", "bert_bfloat16"])
def test_weights_of_queries_keys_and_values_stay_deferred_in_one(name: str, tmp_path: Path) -> None:
    options = RewriteOptions(precision="bf16", verify=False)
    model = rewrite_model(model_of(name, tmp_path / "model", Storage.MAP), options).model
    joined = [tensor for tensor in model.proto.graph.initializer if tensor.name.startswith("qkv_weight")]
    assert joined
    assert all(isinstance(model.weights.held_for(tensor), DeferredData) for tensor in joined)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["qwen3_bfloat16", "roberta"])
def test_answers_are_those_of_one_session(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = model_of(name, tmp_path / "model"), tiny_folders.pad(None)
    whole = open_session(Model.of(model.whole()), optimize=False)
    given = {item.name: feeds[item.name] for item in whole.get_inputs()}
    wanted = whole.run(None, given)
    parts = open_session(model, optimize=False)
    assert parts_of(parts) > 1
    np.testing.assert_array_equal(parts.run(None, given)[0], wanted[0])
    monkeypatch.setattr(staged_session, "KEPT_BYTES", 1 << 30)
    kept = open_session(model, optimize=False)
    assert parts_of(kept) == 1
    for _ in range(2):
        np.testing.assert_array_equal(kept.run(None, given)[0], wanted[0])


@pytest.mark.usefixtures("large")
def test_small_models_are_not_cut_into_small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("qwen3_bfloat16", tmp_path / "model")
    monkeypatch.setattr(staged_session, "PART_BYTES", 1 << 20)
    assert parts_of(open_session(model, optimize=False)) >= staged_session.PARTS
    monkeypatch.setattr(staged_session, "LEAST_PART_BYTES", 1 << 20)
    assert parts_of(open_session(model, optimize=False)) == 1


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("cores", "threads"), [(16, 0), (64, 16)])  # 0: onnxruntime chooses
def test_parts_have_few_threads_each(cores: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_session, "cores", lambda: cores)
    session = open_session(model_of("bert_bfloat16", tmp_path / "model"))
    assert isinstance(session, staged_session.StagedSession)
    found = {part.session.get_session_options().intra_op_num_threads for part in session._parts}
    assert found == {threads}


@pytest.mark.usefixtures("large")
def test_rows_of_tables_alone_are_read(tmp_path: Path) -> None:
    model = model_of("qwen3_bfloat16", tmp_path / "model")
    (table,) = [item for item in model.proto.graph.initializer if item.name.endswith("embed_tokens.weight")]
    held = model.weights.held_for(table)
    assert isinstance(held, DeferredData)
    read = list[str]()
    held.read = lambda: read.append("all") or np.zeros(0)
    feeds = tiny_folders.pad(None)
    session = open_session(model, optimize=False)
    session.run(None, {item.name: feeds[item.name] for item in session.get_inputs()})
    assert not read


@pytest.mark.usefixtures("large")
def test_ids_that_a_table_lacks_are_refused(tmp_path: Path) -> None:
    session = open_session(model_of("qwen3", tmp_path / "model"), optimize=False)
    feeds = tiny_folders.pad(None)
    given = {item.name: feeds[item.name] for item in session.get_inputs()}
    given["input_ids"] = given["input_ids"] + 1000
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.run(None, given)


@pytest.mark.slow
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("layer", [0, 1])
def test_weights_of_any_layer_that_differ_are_found(layer: int, tmp_path: Path) -> None:
    original = model_of("qwen3_bfloat16", tmp_path / "model")
    result = rewrite_model(original, RewriteOptions(verify=False)).model
    metadata = read_metadata(result.proto)
    runs = result.with_proto(with_functions(result.proto))
    verify_ids(original, runs, metadata)
    named = f"layers.{layer}.mlp.down_proj"
    tensor = next(item for item in result.proto.graph.initializer if named in item.name)
    wrong = runs.array(tensor) * np.float32(1.01)
    runs.weights.hold(tensor, memoryview(wrong.tobytes()))
    with pytest.raises(VerificationError):
        verify_ids(original, runs, metadata)


def test_what_is_deferred_is_in_memory_once_as_long_as_it_is_held() -> None:
    made = list[int]()

    def read() -> Any:
        made.append(1)
        return np.arange(6, dtype=np.float32).reshape(2, 3)

    held = DeferredData(24, read)
    first = held.data()
    assert held.data().obj is not None
    assert len(made) == 1
    assert np.frombuffer(first, np.float32).tolist() == [0, 1, 2, 3, 4, 5]
    del first
    held.data()
    assert len(made) == 2


def test_deferred_weights_know_their_sizes(tmp_path: Path, large: None) -> None:
    del large
    model = model_of("bert", tmp_path / "model")
    for tensor in model.proto.graph.initializer:
        if tensor in model.weights:
            assert tensor.data_type == TensorProto.FLOAT
            assert model.weights.size_of(tensor) == 4 * int(np.prod(tensor.dims))


@pytest.mark.parametrize("name", ["roberta", "qwen3_bfloat16"])
def test_fp8_is_that_of_small_models(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Scales come from the model that runs part by part; the e4m3 numbers come from the files."""
    ids = tmp_path / "ids.jsonl"
    ids.write_text("\n".join(json.dumps({"input_ids": list(row)}) for row in tiny_folders.REQUESTS), "utf-8")

    def make_fp8() -> ModelProto:
        model = model_of(name, tmp_path / "model")
        options = RewriteOptions(verify=False)
        result = quantized_model(model, ids, Calibration(ids), options, begin=lambda *_: lambda: None)
        return result.whole()

    wanted = make_fp8()
    request.getfixturevalue("large")
    assert make_fp8() == wanted
