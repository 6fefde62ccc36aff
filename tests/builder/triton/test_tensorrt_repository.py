# SPDX-License-Identifier: Apache-2.0
"""The tensorrt backend's repository: the whole configuration against the expected one, field by field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from padfree.builder import BuildError
from padfree.builder.triton import ServingOptions, write_repository
from padfree.builder.triton.config import protobuf, read_text

pytest.importorskip("tritonclient.grpc")

PlanWriter = Callable[..., Path]

# Two token inputs, an output with a row per token, and one with a row per sequence.
EXPECTED = """
name: "bert"
backend: "tensorrt"
default_model_filename: "model.plan"
max_batch_size: 12
input { name: "input_ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true }
input { name: "token_type_ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true }
batch_input {
  kind: BATCH_ITEM_SHAPE_FLATTEN target_name: "seq_lens" data_type: TYPE_INT32 source_input: "input_ids"
}
output { name: "hidden" data_type: TYPE_FP32 dims: -1 dims: 2 }
output { name: "lengths" data_type: TYPE_FP32 dims: 1 }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "hidden" source_input: "input_ids" }
dynamic_batching { max_queue_delay_microseconds: 250 default_queue_policy { max_queue_size: 64 } }
instance_group { count: 2 kind: KIND_GPU }
parameters { key: "padfree_max_tokens" value { string_value: "100" } }
model_warmup {
  name: "one short sequence" batch_size: 1
  inputs { key: "input_ids" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
  inputs { key: "token_type_ids" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
}
model_warmup {
  name: "the fullest batch" batch_size: 12
  inputs { key: "input_ids" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
  inputs { key: "token_type_ids" value { data_type: TYPE_INT32 dims: 8 zero_data: true } }
}
"""


def configuration(model: Path, folder: Path, **options: Any) -> Any:
    write_repository(model, folder, ServingOptions("bert", **{"backend": "tensorrt", "server": "24.11", **options}))
    return read_text(folder / "bert" / "config.pbtxt")


def test_every_field(write_plan: PlanWriter, tmp_path: Path) -> None:
    actual = configuration(write_plan(), tmp_path / "models", max_queue_delay_us=250, max_queue_size=64, instances=2)
    expected = text_format.Parse(EXPECTED, protobuf().ModelConfig())
    assert text_format.MessageToString(actual) == text_format.MessageToString(expected)


def test_every_file(write_plan: PlanWriter, libraries: Path, tmp_path: Path) -> None:
    model, folder = write_plan(), tmp_path / "models"
    configuration(model, folder)
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert sorted(files) == [
        ".dockerignore",
        "Dockerfile",
        "bert/1/model.plan",
        "bert/1/model.plan.json",
        "bert/batchstrategy.so",
        "bert/config.pbtxt",
        "bert/padfree.json",
        "kubernetes.yaml",
        "padfree.json",
        "padfree.tar",
    ]
    assert files["bert/1/model.plan"].read_bytes() == model.read_bytes()
    assert files["bert/1/model.plan.json"].read_bytes() == model.with_name("model.plan.json").read_bytes()
    batching = libraries / "libpadfree_triton_batching.so"
    assert files["bert/batchstrategy.so"].read_bytes() == batching.read_bytes()


def test_a_padded_axis_is_as_long_as_the_largest_request(
    write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path
) -> None:
    longest = {"name": "longest", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    model = write_plan(inputs=[*packed_metadata["inputs"], longest])
    actual = configuration(model, tmp_path / "models")
    kinds = {item.target_name[0]: protobuf().BatchInput.Kind.Name(item.kind) for item in actual.batch_input}
    assert kinds == {"seq_lens": "BATCH_ITEM_SHAPE_FLATTEN", "longest": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"}
    assert [item.name for item in actual.input] == ["input_ids", "token_type_ids"]


def test_types_and_shapes_of_outputs(write_plan: PlanWriter, tmp_path: Path) -> None:
    outputs = [
        {"name": "hidden", "layout": "packed", "dtype": "float16", "shape": [None, 64]},
        {"name": "tags", "layout": "packed", "dtype": "bfloat16", "shape": [None]},
        {"name": "score", "layout": "per_sequence", "dtype": "float32", "shape": [None]},
        {"name": "weights", "layout": "padded", "dtype": "float32", "shape": [None, None, 3]},
        {"name": "kind", "layout": "per_sequence", "dtype": "int64", "shape": [None, 4, 5]},
    ]
    actual = configuration(write_plan(outputs=outputs), tmp_path / "models")
    types = protobuf().DataType.Name
    shown = {item.name: (types(item.data_type), list(item.dims), item.HasField("reshape")) for item in actual.output}
    assert shown == {
        "hidden": ("TYPE_FP16", [-1, 64], False),
        "tags": ("TYPE_BF16", [-1], False),
        "score": ("TYPE_FP32", [1], True),  # the engine's [B] is reshaped to [B, 1]: dims may not be empty
        "weights": ("TYPE_FP32", [-1, 3], False),
        "kind": ("TYPE_INT64", [4, 5], False),
    }
    # One entry per tensor, and none for tensors that Triton splits by itself.
    assert [list(item.target_name) for item in actual.batch_output] == [["hidden"], ["tags"]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": None}, "the metadata does not say its shape"),
        (
            {"shape": [None, None]},
            r"'hidden' has shape \[None, None\], whose sizes after the tokens are not all fixed",
        ),
        ({"dtype": "complex64"}, "type complex64 cannot be served, allowed: float32, float16"),
    ],
)
def test_outputs_that_triton_cannot_hand_out(
    write_plan: PlanWriter, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    output = {"name": "hidden", "layout": "packed", "dtype": "float32", "shape": [None, 2], **changes}
    with pytest.raises(BuildError, match=message):
        configuration(write_plan(outputs=[output]), tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_the_fullest_warm_up_fits_the_profile(write_plan: PlanWriter, tmp_path: Path) -> None:
    actual = configuration(write_plan(profile={"max_tokens": 20, "max_batch": 32}), tmp_path / "models")
    assert actual.max_batch_size == 20  # the backend takes the smallest first dimension, which is the 20 of tokens
    sizes = [(sample.batch_size, list(sample.inputs["input_ids"].dims)) for sample in actual.model_warmup]
    assert sizes == [(1, [8]), (20, [1])]


def test_warm_up_tokens_are_ones_that_the_model_takes(
    write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path
) -> None:
    coverage = {**packed_metadata["coverage"], "excluded_ids": {"input_ids": [0, 1]}}
    actual = configuration(write_plan(coverage=coverage), tmp_path / "models")
    for sample in actual.model_warmup:
        inputs = sample.inputs["input_ids"]
        data = (tmp_path / "models" / "bert" / "warmup" / inputs.input_data_file).read_bytes()
        assert data == b"\x02\0\0\0" * inputs.dims[0]
        assert sample.inputs["token_type_ids"].zero_data


@pytest.mark.parametrize("name", ["../../../outside", "bert/embeddings:0", "/etc/cron.d/x", "名前", "."])
def test_names_of_inputs_do_not_lead_out_of_the_folder(
    write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path, name: str
) -> None:
    packed_metadata["inputs"][0]["name"] = name
    packed_metadata["coverage"]["excluded_ids"] = {name: [0]}
    plan = write_plan()
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    (tmp_path / "place").mkdir()
    actual = configuration(plan, tmp_path / "place" / "models")
    assert actual.input[0].name == name
    for sample in actual.model_warmup:
        file = sample.inputs[name].input_data_file
        assert "/" not in file
        assert (tmp_path / "place" / "models" / "bert" / "warmup" / file).is_file()
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert all(
        path.is_relative_to(tmp_path / "place" / "models") or path.name.startswith("model.p") for path in written
    )


def test_the_batch_size_is_the_profiles_unless_asked(write_plan: PlanWriter, tmp_path: Path) -> None:
    model = write_plan()
    assert configuration(model, tmp_path / "less", max_batch=5).max_batch_size == 5
    with pytest.raises(BuildError, match="--max-batch 13, the plan takes 12 sequences; pass --max-batch 12"):
        configuration(model, tmp_path / "more", max_batch=13)


def test_without_the_batching_library(write_plan: PlanWriter, libraries: Path, tmp_path: Path) -> None:
    (libraries / "libpadfree_triton_batching.so").unlink()
    with pytest.raises(BuildError, match="is missing: without it a batch may hold more tokens than the plan takes"):
        configuration(write_plan(), tmp_path / "models")


def test_a_padded_plan(write_plan: PlanWriter, tmp_path: Path) -> None:
    model = write_plan(interface="padded")
    with pytest.raises(BuildError, match="has the padded interface, --backend tensorrt serves packed ones"):
        configuration(model, tmp_path / "models", backend="tensorrt")
    assert configuration(model, tmp_path / "models", backend=None).backend == "python"
