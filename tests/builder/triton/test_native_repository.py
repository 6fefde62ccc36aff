# SPDX-License-Identifier: Apache-2.0
"""The native backend's repository: configuration, files, image, and what it does not serve."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from padfree.builder import BuildError
from padfree.builder.cli import main
from padfree.builder.triton import ServingOptions, write_repository
from padfree.builder.triton.config import protobuf, read_text
from padfree.builder.triton.serving import choose

from tests.support.folders import TOKENIZER

pytest.importorskip("tritonclient.grpc")

PlanWriter = Callable[..., Path]

EXPECTED = """
name: "bert"
backend: "padfree"
default_model_filename: "model.plan"
max_batch_size: 12
input { name: "input_ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true }
input { name: "token_type_ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true optional: true }
input { name: "seq_lens" data_type: TYPE_INT32 dims: 1 optional: true }
output { name: "hidden" data_type: TYPE_FP32 dims: -1 dims: 2 }
output { name: "lengths" data_type: TYPE_FP32 dims: 1 }
dynamic_batching { max_queue_delay_microseconds: 250 }
instance_group { count: 2 kind: KIND_GPU }
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


def with_vocabulary(metadata: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """The inputs, with a table of `size` ids."""
    return [{**item, "limit": size} if item["name"] == "input_ids" else item for item in metadata["inputs"]]


def write(model: Path, folder: Path, **options: Any) -> Path:
    options = {"server": "24.11", "backend": "padfree", **options}
    return write_repository(model, folder, ServingOptions("bert", **options)).folder


def test_every_field(write_plan: PlanWriter, tmp_path: Path) -> None:
    folder = write(write_plan(), tmp_path / "models", max_queue_delay_us=250, instances=2)
    actual = read_text(folder / "bert" / "config.pbtxt")
    expected = text_format.Parse(EXPECTED, protobuf().ModelConfig())
    assert text_format.MessageToString(actual) == text_format.MessageToString(expected)


def test_instances_on_some_gpus(write_plan: PlanWriter, tmp_path: Path) -> None:
    """One group has the given instances on each GPU, and the server gets all GPUs up to the last of them."""
    folder = write(write_plan(), tmp_path / "models", instances=2, gpus=(1, 3))
    (group,) = read_text(folder / "bert" / "config.pbtxt").instance_group
    assert (group.count, list(group.gpus)) == (2, [1, 3])
    assert group.kind == protobuf().ModelInstanceGroup.KIND_GPU
    assert "nvidia.com/gpu: 4" in (folder / "kubernetes.yaml").read_text("utf-8")


def test_every_file_and_the_image(write_plan: PlanWriter, tmp_path: Path) -> None:
    model = write_plan()
    folder = write(model, tmp_path / "models")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {name for name in files if name.startswith("bert/")} == {
        "bert/1/model.plan",
        "bert/1/model.plan.json",
        "bert/config.pbtxt",
        "bert/padfree.json",
    }
    assert (folder / "bert/1/model.plan").read_bytes() == model.read_bytes()
    with tarfile.open(fileobj=io.BytesIO((folder / "padfree.tar").read_bytes())) as archive:
        names = {name for name in archive.getnames() if name.startswith("padfree/lib/")}
    libraries = ("libpadfree.so", "libpadfree_register.so", "libtriton_padfree.so", "libpadfree_engine.so")
    assert names == {f"padfree/lib/{name}" for name in libraries}
    dockerfile = (folder / "Dockerfile").read_text("utf-8")
    backends = "/opt/tritonserver/backends/padfree"
    assert f"RUN mkdir {backends} && ln -s /opt/padfree/lib/*.so {backends}/" in dockerfile
    assert "pip3 install" not in dockerfile  # nothing runs in Python
    assert "libnvinfer.so.10.6.0" in dockerfile
    assert "plugins=" not in dockerfile  # the engine library loads them


def test_texts_in_the_backend_itself(write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path) -> None:
    """A tokenizer of BERT's kind is compiled: no Python in the image, and the command says so."""
    folder, plan = tmp_path / "models", write_plan(inputs=with_vocabulary(packed_metadata, 930))
    command = ["triton", str(plan), "-o", str(folder), "--name", "bert", "--server", "24.11", "--backend", "padfree"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main([*command, "--tokenizer", str(TOKENIZER)]) == 0
    line = "bert takes texts too, and makes tokens in the native backend: no Python runs in this model"
    assert line in " ".join(output.getvalue().split())
    assert "--shm-size" not in output.getvalue()
    config = read_text(folder / "bert_tokenizer" / "config.pbtxt")
    assert (config.backend, config.default_model_filename) == ("padfree", "tokenizer.compiled.json")
    assert {name: value.string_value for name, value in config.parameters.items()} == {
        "padfree_tokenizer": "tokenizer.compiled.json",
        "padfree_max_length": "16",
        "padfree_vocabulary": "930",
    }
    assert {path.name for path in (folder / "bert_tokenizer" / "1").iterdir()} == {"tokenizer.compiled.json"}
    compiled = (folder / "bert_tokenizer" / "1" / "tokenizer.compiled.json").read_bytes()
    assert (folder / "bert" / "1" / "tokenizer.compiled.json").read_bytes() == compiled
    ensemble = read_text(folder / "bert_text" / "config.pbtxt")
    (step,) = ensemble.ensemble_scheduling.step
    assert step.model_name == "bert"
    assert set(step.input_map) == {"text", "text_pair", "truncate"}
    assert {item.name for item in ensemble.output} == set(step.output_map)
    assert {"seq_lens", "truncated"} < set(step.output_map)


def test_an_encoder_with_texts(write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path) -> None:
    """Its inputs for token ids become optional, those for texts are too; parameters name the plan and the tokenizer."""
    plan = write_plan(inputs=with_vocabulary(packed_metadata, 930))
    config = read_text(write(plan, tmp_path / "models", tokenizer=TOKENIZER) / "bert" / "config.pbtxt")
    assert {item.name: item.optional for item in config.input} == dict.fromkeys(
        ("input_ids", "token_type_ids", "seq_lens", "text", "text_pair", "truncate"), True
    )
    assert [item.name for item in config.output][-2:] == ["seq_lens", "truncated"]
    assert {name: value.string_value for name, value in config.parameters.items()} == {
        "padfree_model": "model.plan",
        "padfree_tokenizer": "tokenizer.compiled.json",
        "padfree_max_length": "16",
        "padfree_vocabulary": "930",
    }


def test_texts_in_the_image(write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path) -> None:
    plan = write_plan(inputs=with_vocabulary(packed_metadata, 930))
    folder = write(plan, tmp_path / "models", tokenizer=TOKENIZER)
    assert "pip3 install" not in (folder / "Dockerfile").read_text("utf-8")
    assert '"bert_tokenizer"' in (folder / "Dockerfile").read_text("utf-8")


def test_texts_in_python_where_the_tokenizer_is_of_another_kind(
    write_plan: PlanWriter, tokenizer: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    command = ["triton", str(write_plan()), "-o", str(folder), "--name", "bert", "--server", "24.11"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main([*command, "--backend", "padfree", "--tokenizer", str(tokenizer)]) == 0
    why = "bert_tokenizer makes tokens in Python, because the tokenizer has the normalizer None, and compiled ones have"
    assert why in " ".join(output.getvalue().split())
    assert "--shm-size=1g" in output.getvalue()
    assert read_text(folder / "bert_tokenizer" / "config.pbtxt").backend == "python"
    assert "tokenizers>=0.20" in (folder / "Dockerfile").read_text("utf-8")


def test_numbers_of_tokens_and_of_sequences(
    write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path
) -> None:
    boxes = {"name": "bbox", "role": "tokens", "limit": 9, "dtype": "int32", "width": 4}
    floats = {"name": "features", "role": "per_sequence", "limit": None, "dtype": "float32", "width": 3}
    folder = write(write_plan(inputs=[*packed_metadata["inputs"], boxes, floats]), tmp_path / "models")
    config = read_text(folder / "bert" / "config.pbtxt")
    types = protobuf().DataType.Name
    found = {item.name: (types(item.data_type), list(item.dims)) for item in config.input}
    assert found["bbox"] == ("TYPE_INT32", [-1, 4])
    assert found["features"] == ("TYPE_FP32", [3])
    assert list(config.model_warmup[0].inputs["bbox"].dims) == [8, 4]


def test_the_input_of_shared_prefixes_is_the_backends(
    write_plan: PlanWriter, packed_metadata: dict[str, Any], tmp_path: Path
) -> None:
    prefix = {"name": "prefix", "role": "prefix", "limit": None, "dtype": "int32"}
    model = write_plan(inputs=[*packed_metadata["inputs"], prefix])
    config = read_text(write(model, tmp_path / "models") / "bert" / "config.pbtxt")
    assert {item.name for item in config.input}.isdisjoint({"prefix"})
    with pytest.raises(BuildError, match="an input for shared prefixes, which --backend tensorrt does not fill"):
        choose(model, ServingOptions("bert", backend="tensorrt"))
    chosen = choose(model, ServingOptions("bert"))
    assert (chosen.backend, chosen.why) == ("python", "texts of a batch share what they begin with there")


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"interface": "padded"}, {}, "--backend padfree serves packed ones"),
        ({}, {"fair_share": True}, "--fair-share is for --backend python"),
        ({}, {"costs": Path("costs.json")}, "--costs costs.json is for --backend python"),
        ({}, {"server": "24.12"}, "the plan was built with TensorRT 10.6.0, the server .* has 10.7.0"),
        (
            {"outputs": [{"name": "grid", "layout": "padded", "dtype": "float32", "shape": [None, None, 3]}]},
            {},
            "output 'grid' .* has no row of one size for every token or every sequence, which --backend padfree needs",
        ),
    ],
)
def test_what_it_does_not_serve(
    write_plan: PlanWriter, tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    model = write_plan(**changes)
    with pytest.raises(BuildError, match=message):
        write(model, tmp_path / "models", **options)
    assert not (tmp_path / "models" / "bert").exists()


def test_an_onnx_file_needs_the_python_backend(packed_model: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="--backend padfree needs a plan; build one with: padfree build"):
        write(packed_model(), tmp_path / "models")


def test_without_its_library(write_plan: PlanWriter, libraries: Path, tmp_path: Path) -> None:
    (libraries / "libtriton_padfree.so").unlink()
    with pytest.raises(
        BuildError, match=r"libtriton_padfree.so is missing: it is the backend; .* or use --backend python"
    ):
        write(write_plan(), tmp_path / "models")
