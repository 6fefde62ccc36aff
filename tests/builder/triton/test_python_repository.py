# SPDX-License-Identifier: Apache-2.0
"""The python backend's repository and the text ensemble: whole configurations against the expected ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import text_format
from padfree.builder import BuildError
from padfree.builder.triton import ServingOptions, write_repository
from padfree.builder.triton.config import protobuf, read_text
from padfree.runtime import SessionError
from padfree.runtime.batching.costs import CostTable, read_costs
from padfree.runtime.triton.parameters import EncoderParameters, TokenizerParameters

pytest.importorskip("tritonclient.grpc")

ModelWriter = Callable[..., Path]
PlanWriter = Callable[..., Path]

ENCODER = """
name: "bert" backend: "python" default_model_filename: "model.py" max_batch_size: 32
input { name: "input_ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true }
input { name: "token_type_ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true optional: true }
input { name: "seq_lens" data_type: TYPE_INT32 dims: 1 optional: true }
output { name: "hidden" data_type: TYPE_FP32 dims: -1 dims: 2 }
output { name: "lengths" data_type: TYPE_FP32 dims: 1 }
dynamic_batching { }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "padfree_model" value { string_value: "model.onnx" } }
model_warmup {
  name: "one short sequence" batch_size: 1
  inputs { key: "input_ids" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
  inputs { key: "token_type_ids" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
}
"""
TOKENIZER = """
name: "bert_tokenizer" backend: "python" default_model_filename: "model.py" max_batch_size: 32
input { name: "text" data_type: TYPE_STRING dims: 1 optional: true }
input { name: "text_pair" data_type: TYPE_STRING dims: 1 optional: true }
input { name: "truncate" data_type: TYPE_BOOL dims: 1 optional: true }
output { name: "input_ids" data_type: TYPE_INT32 dims: -1 }
output { name: "token_type_ids" data_type: TYPE_INT32 dims: -1 }
output { name: "seq_lens" data_type: TYPE_INT32 dims: 1 }
output { name: "truncated" data_type: TYPE_BOOL dims: 1 }
dynamic_batching { }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "padfree_max_length" value { string_value: "16" } }
parameters { key: "padfree_vocabulary" value { string_value: "100" } }
"""
ENSEMBLE = """
name: "bert_text" platform: "ensemble" max_batch_size: 32
input { name: "text" data_type: TYPE_STRING dims: 1 optional: true }
input { name: "text_pair" data_type: TYPE_STRING dims: 1 optional: true }
input { name: "truncate" data_type: TYPE_BOOL dims: 1 optional: true }
output { name: "hidden" data_type: TYPE_FP32 dims: -1 dims: 2 }
output { name: "lengths" data_type: TYPE_FP32 dims: 1 }
output { name: "seq_lens" data_type: TYPE_INT32 dims: 1 }
output { name: "truncated" data_type: TYPE_BOOL dims: 1 }
ensemble_scheduling {
  step {
    model_name: "bert_tokenizer" model_version: -1
    input_map { key: "text" value: "text" }
    input_map { key: "text_pair" value: "text_pair" }
    input_map { key: "truncate" value: "truncate" }
    output_map { key: "input_ids" value: "input_ids" }
    output_map { key: "token_type_ids" value: "token_type_ids" }
    output_map { key: "seq_lens" value: "seq_lens" }
    output_map { key: "truncated" value: "truncated" }
  }
  step {
    model_name: "bert" model_version: -1
    input_map { key: "input_ids" value: "input_ids" }
    input_map { key: "token_type_ids" value: "token_type_ids" }
    input_map { key: "seq_lens" value: "seq_lens" }
    output_map { key: "hidden" value: "hidden" }
    output_map { key: "lengths" value: "lengths" }
  }
}
"""


def configuration(folder: Path, name: str) -> Any:
    return read_text(folder / name / "config.pbtxt")


def same(actual: Any, expected: str) -> bool:
    return actual == text_format.Parse(expected, protobuf().ModelConfig())


def parameters(config: Any) -> dict[str, Any]:
    """The parameters as the server passes them to a model."""
    return {"parameters": {name: {"string_value": item.string_value} for name, item in config.parameters.items()}}


def test_every_field(packed_model: ModelWriter, tmp_path: Path, tokenizer: Path) -> None:
    options = ServingOptions("bert", tokenizer=tokenizer)
    actual = write_repository(packed_model(), tmp_path / "models", options)
    assert actual.models == ("bert", "bert_tokenizer", "bert_text")
    for name, expected in zip(actual.models, (ENCODER, TOKENIZER, ENSEMBLE), strict=True):
        assert same(configuration(actual.folder, name), expected), name


def test_a_text_waits_for_others_once(packed_model: ModelWriter, tmp_path: Path, tokenizer: Path) -> None:
    options = ServingOptions("bert", tokenizer=tokenizer, max_queue_delay_us=500, max_queue_size=7)
    folder = write_repository(packed_model(), tmp_path / "models", options).folder
    for name, delay_us in (("bert", 500), ("bert_tokenizer", 0)):
        batching = configuration(folder, name).dynamic_batching
        assert batching.max_queue_delay_microseconds == delay_us
        assert batching.default_queue_policy.max_queue_size == 7


def test_the_models_read_the_parameters_that_are_written(
    packed_model: ModelWriter, tmp_path: Path, tokenizer: Path
) -> None:
    options = ServingOptions("bert", tokenizer=tokenizer / "tokenizer.json", max_length=9, long_texts="refuse")
    folder = write_repository(packed_model(), tmp_path / "models", options).folder
    assert EncoderParameters.from_config(parameters(configuration(folder, "bert"))) == EncoderParameters("model.onnx")
    read = TokenizerParameters.from_config(parameters(configuration(folder, "bert_tokenizer")))
    assert read == TokenizerParameters(9, long_texts="refuse", vocabulary=100)
    assert (folder / "bert_tokenizer" / "1" / "tokenizer.json").is_file()
    assert onnx.load(str(folder / "bert" / "1" / "model.onnx")) == onnx.load(str(packed_model()))


def test_the_models_name_classes_of_the_runtime(packed_model: ModelWriter, tmp_path: Path, tokenizer: Path) -> None:
    options = ServingOptions("bert", tokenizer=tokenizer)
    folder = write_repository(packed_model(), tmp_path / "models", options).folder
    source = Path(__file__).parents[3] / "runtime" / "triton"
    for model, module, name in (("bert", "encoder", "EncoderModel"), ("bert_tokenizer", "tokenizer", "TokenizerModel")):
        text = (folder / model / "1" / "model.py").read_text()
        assert f"from padfree.runtime.triton.{module} import {name} as TritonPythonModel" in text
        assert f"class {name}:" in (source / f"{module}.py").read_text()


def test_a_plan_runs_on_gpus(write_plan: PlanWriter, tmp_path: Path) -> None:
    outputs = [{"name": "hidden", "layout": "packed", "dtype": "bfloat16", "shape": [None, 2]}]
    options = ServingOptions("bert", backend="python", max_batch=40)
    folder = write_repository(write_plan(outputs=outputs), tmp_path / "models", options).folder
    config = configuration(folder, "bert")
    assert config.instance_group[0].kind == protobuf().ModelInstanceGroup.KIND_GPU
    assert config.max_batch_size == 40  # the model cuts batches to the plan's 12 sequences itself
    assert config.output[0].data_type == protobuf().DataType.TYPE_FP32  # NumPy has no bfloat16
    assert [(sample.batch_size, sample.inputs["input_ids"].dims[0]) for sample in config.model_warmup] == [
        (1, 8),
        (12, 8),
    ]
    assert sorted(path.name for path in (folder / "bert" / "1").iterdir()) == [
        "model.plan",
        "model.plan.json",
        "model.py",
    ]


@pytest.mark.parametrize("backend", ["python", "tensorrt"])
def test_a_plan_runs_on_the_gpus_that_are_named(write_plan: PlanWriter, tmp_path: Path, backend: str) -> None:
    for gpus, expected in (((0, 2), [0, 2]), (None, [])):  # where no GPUs are named, the server takes all of them
        options = ServingOptions("bert", backend=backend, server="24.11", gpus=gpus, instances=3)
        folder = write_repository(write_plan(), tmp_path / f"{gpus}", options).folder
        (group,) = configuration(folder, "bert").instance_group
        assert (group.count, list(group.gpus)) == (3, expected)
        assert f"nvidia.com/gpu: {3 if gpus else 1}}}" in (folder / "kubernetes.yaml").read_text("utf-8")


def test_gpus_are_for_plans(packed_model: ModelWriter, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"--gpus 0,1: is for plans, and .* runs on the CPU"):
        write_repository(packed_model(), tmp_path / "models", ServingOptions("bert", gpus=(0, 1)))


def test_clients_share_the_model_where_that_is_asked_for(
    packed_model: ModelWriter, write_plan: PlanWriter, tmp_path: Path
) -> None:
    options = ServingOptions("bert", fair_share=True)
    folder = write_repository(packed_model(), tmp_path / "models", options).folder
    assert EncoderParameters.from_config(parameters(configuration(folder, "bert"))).fair_share
    with pytest.raises(BuildError, match="--fair-share is for --backend python"):
        write_repository(write_plan(), tmp_path / "plans", replace(options, backend="tensorrt"))
    with pytest.raises(BuildError, match="--fair-share cuts runs by whose turn it is, --costs by what they cost"):
        ServingOptions("bert", fair_share=True, costs=tmp_path / "costs.json")


def test_batches_cut_by_measured_costs(write_plan: PlanWriter, tmp_path: Path) -> None:
    costs = tmp_path / "measured.json"
    costs.write_text(CostTable("padded", (8, 16), (1, 4), ((1.0, 2.0), (1.5, 3.0))).to_json())
    options = ServingOptions("bert", costs=costs)
    folder = write_repository(write_plan(interface="padded"), tmp_path / "models", options).folder
    assert EncoderParameters.from_config(parameters(configuration(folder, "bert"))).costs == "costs.json"
    assert read_costs(folder / "bert" / "1" / "costs.json") == read_costs(costs)
    with pytest.raises(BuildError, match="is for --backend python"):
        write_repository(write_plan(), tmp_path / "other", replace(options, backend="tensorrt"))
    with pytest.raises(BuildError, match=r"measured\.json: costs of a padded model, this one is packed"):
        write_repository(write_plan(), tmp_path / "other", options)
    costs.write_text("{}")
    with pytest.raises(SessionError, match=r"measured\.json"):
        write_repository(write_plan(interface="padded"), tmp_path / "other", options)


def test_texts_of_the_tensorrt_backend_come_one_a_request(
    write_plan: PlanWriter, tmp_path: Path, tokenizer: Path
) -> None:
    options = ServingOptions("bert", "tensorrt", tokenizer=tokenizer, server="24.11")
    folder = write_repository(write_plan(), tmp_path / "models", options).folder
    ensemble = configuration(folder, "bert_text")
    assert ensemble.max_batch_size == 1
    encoder = ensemble.ensemble_scheduling.step[1]
    assert dict(encoder.input_map) == {"input_ids": "input_ids", "token_type_ids": "token_type_ids"}
    assert [item.name for item in ensemble.output] == ["hidden", "lengths", "truncated"]
    assert configuration(folder, "bert").max_batch_size == 12


def test_text_ensembles_that_cannot_be(
    packed_model: ModelWriter, packed_metadata: dict[str, Any], tmp_path: Path, tokenizer: Path
) -> None:
    inputs = [{"name": "segments", "role": "tokens", "limit": 2, "dtype": "int32"}, *packed_metadata["inputs"]]
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"inputs": inputs}, {}, "texts do not give the model's input 'segments'"),
        ({"max_positions": None}, {}, "the model sets no limit to a text's length; pass --max-length 512"),
        ({}, {"max_length": 17}, "--max-length 17, the model takes 16 tokens"),
        ({}, {"tokenizer": tmp_path}, "tokenizer.json: no such tokenizer"),
    ]
    for changes, values, message in cases:
        options = ServingOptions("bert", **{"tokenizer": tokenizer, **values})
        with pytest.raises(BuildError, match=message):
            write_repository(packed_model(**changes), tmp_path / "models", options)
        assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a/b"}, "model name 'a/b', allowed: letters, digits"),
        ({"backend": "onnx"}, "--backend onnx, allowed: tensorrt, python, padfree"),
        ({"max_batch": 0}, "--max-batch 0, allowed: 1 or more"),
        ({"instances": 0}, "--instances 0, allowed: 1 or more"),
        ({"max_queue_delay_us": -1}, "--max-queue-delay-us -1, allowed: 0 or more"),
        ({"max_batch": 3_000_000_000}, "--max-batch 3000000000, allowed: 1 or more, at most 2147483647"),
        ({"max_queue_size": 2**32}, "--max-queue-size 4294967296, allowed: 0 or more, at most 4294967295"),
        ({"max_queue_delay_us": 2**64}, "--max-queue-delay-us 18446744073709551616, allowed"),
        ({"instances": 2**31}, "--instances 2147483648, allowed"),
        ({"name": "Dockerfile"}, "model name 'Dockerfile', allowed: .* none of Dockerfile"),
        ({"server": "latest"}, "--server 'latest', allowed: an NGC release, year.month; pass --server 25.08"),
        ({"server": "24.11\nRUN id"}, r"--server '24.11\\nRUN id', allowed"),
        ({"server_tensorrt": "10.6.0'"}, '--server-tensorrt "10.6.0\'", allowed: a version'),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        ServingOptions(**{"name": "bert", **options})
