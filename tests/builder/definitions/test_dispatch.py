# SPDX-License-Identifier: Apache-2.0
"""Nothing is guessed about unknown entries and tensors, or about folders whose files do not belong together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import BuildError
from padfree.builder.definitions.errors import NotDefinedError
from padfree.builder.definitions.keys import Keys
from padfree.builder.folders import source
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder
from padfree.builder.folders.head import HeadOptions
from padfree.contract.phases import Phases
from padfree.onnx_tools.files.weights import Storage

from tests.builder.definitions.test_references import assert_same, run_padded
from tests.support import tiny_folders
from tests.support.folders import write_json
from tests.support.safetensors_files import write_tensors

BERT = tiny_folders.read("bert")


def folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]] = BERT.tensors) -> Path:
    """Writes a BERT's folder with some entries changed; None leaves an entry out."""
    result = {key: value for key, value in {**BERT.config, **config}.items() if value is not None}
    write_json(path / "config.json", result)
    write_tensors(path / "model.safetensors", {name: tiny_folders.draw(name, shape) for name, shape in tensors.items()})
    return path


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"attention_sinks": 4}, "nothing is known of the entry 'attention_sinks'"),
        ({"sinks": 4, "taps": True}, "nothing is known of the 2 entries, among them 'sinks', 'taps'"),
        ({"position_embedding_type": "relative_key"}, "'position_embedding_type' is 'relative_key', and 'absolute'"),
        ({"is_decoder": True, "architectures": ["BertEncoderModel"]}, "'is_decoder' is True, and False alone is known"),
        ({"hidden_act": "mish"}, "the activation is 'mish', and gelu, "),
        ({"hidden_act": "mi\nsh"}, r"the activation is 'mi\\nsh', and gelu, "),
        ({"num_attention_heads": 3}, "the hidden size 16 is no multiple of its 3 heads"),
        ({"auto_map": {"AutoModel": "modeling_x.XBertModel"}}, "its code is 'modeling_x.XBertModel', and nothing"),
        ({"model_type": "odd"}, "no definition is for the model_type 'odd'"),
    ],
)
def test_entries_that_are_not_known(config: Mapping[str, Any], wanted: str, tmp_path: Path) -> None:
    with pytest.raises(NotDefinedError, match=wanted):
        write_defined(read_folder(folder(tmp_path, config)))


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("gemma", {"add_cross_attention": False, "pretraining_tp": 1}),
        ("gemma1", {"use_bidirectional_attention": False}),
        ("deberta_v3", {"conv_kernel_size": 0, "conv_act": "gelu"}),
    ],
)
def test_entries_that_change_nothing(name: str, entries: Mapping[str, Any], tmp_path: Path) -> None:
    reference = tiny_folders.read(name)
    write_json(tiny_folders.write_reference(reference, tmp_path) / "config.json", {**reference.config, **entries})
    write_defined(read_folder(tmp_path))


def test_a_direction_that_is_not_known(tmp_path: Path) -> None:
    reference = tiny_folders.read("gemma1")
    entries = {**reference.config, "use_bidirectional_attention": True}
    write_json(tiny_folders.write_reference(reference, tmp_path) / "config.json", entries)
    with pytest.raises(NotDefinedError, match="'use_bidirectional_attention' is True, and False alone is known"):
        write_defined(read_folder(tmp_path))


def test_tensors_that_are_not_known(tmp_path: Path) -> None:
    tensors = {**BERT.tensors, "encoder.layer.0.adapter.weight": (4, 16)}
    with pytest.raises(NotDefinedError, match=r"nothing is known of tensors such as 'encoder\.layer\.0\.adapter"):
        write_defined(read_folder(folder(tmp_path, {}, tensors)))


def test_layers_that_config_does_not_mention(tmp_path: Path) -> None:
    with pytest.raises(NotDefinedError, match=r"nothing is known of tensors such as 'encoder\.layer\.1\."):
        write_defined(read_folder(folder(tmp_path, {"num_hidden_layers": 1})))


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"num_hidden_layers": 3}, r"lack encoder\.layer\.2\.attention.*different models, or only a part"),
        ({"intermediate_size": 28}, r"'encoder\.layer\.0\.intermediate\.dense\.weight' is \[24, 16\], .* \[28, 16\]"),
        ({"intermediate_size": 10**12}, "intermediate_size'? (is|says)? ?1000000000000"),
        ({"intermediate_size": 0}, "'intermediate_size' is 0, allowed: 1 to "),
        ({"intermediate_size": 24.0}, "'intermediate_size' is 24.0, allowed: 1 to "),
        ({"num_attention_heads": True}, "'num_attention_heads' is True, allowed: 1 to "),
        ({"layer_norm_eps": "1e-12"}, "'layer_norm_eps' is '1e-12', allowed: above 0"),
        ({"layer_norm_eps": -1}, "'layer_norm_eps' is -1, allowed: above 0"),
        ({"hidden_act": ["gelu"]}, r"'hidden_act' is \['gelu'\], allowed: a text"),
        ({"type_vocab_size": None}, ""),
    ],
)
def test_files_that_do_not_belong_together(config: Mapping[str, Any], wanted: str, tmp_path: Path) -> None:
    path = folder(tmp_path, config)
    if not wanted:  # transformers' default fits the weights
        assert write_defined(read_folder(path)).name == "BERT"
        return
    with pytest.raises(BuildError, match=wanted) as caught, source.opened(path):
        pass
    assert "\n" not in str(caught.value)


def header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a safetensors file's header; the data stays."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    raw = json.loads(content[8:end])
    change(raw)
    text = json.dumps(raw).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def test_bytes_that_are_not_those_of_the_shape(tmp_path: Path) -> None:
    name = "encoder.layer.0.output.dense.weight"

    def change(raw: dict[str, Any]) -> None:
        raw[name]["data_offsets"][1] -= 4

    header(folder(tmp_path, {}) / "model.safetensors", change)
    with pytest.raises(BuildError, match=f"'{re.escape(name)}' does not have the size that its shape says"):
        write_defined(read_folder(tmp_path))


def test_numbers_of_another_type(tmp_path: Path) -> None:
    folder(tmp_path, {})
    name = "encoder.layer.0.output.dense.weight"
    tensors = {key: tiny_folders.draw(key, shape) for key, shape in BERT.tensors.items()}
    write_tensors(tmp_path / "model.safetensors", {**tensors, name: tensors[name].astype(np.float64)})
    with pytest.raises(NotDefinedError, match=f"'{re.escape(name)}' has the type F64, and F32, F16, BF16 alone"):
        write_defined(read_folder(tmp_path))


def shards(path: Path, count: int) -> list[Path]:
    """Writes BERT's folder with its weights in several files."""
    folder(path, {})
    (path / "model.safetensors").unlink()
    listed = sorted(BERT.tensors)
    files = [path / f"model-{number + 1:05d}-of-{count:05d}.safetensors" for number in range(count)]
    for number, file in enumerate(files):
        write_tensors(file, {name: tiny_folders.draw(name, BERT.tensors[name]) for name in listed[number::count]})
    write_json(path / "model.safetensors.index.json", {"weight_map": {}})
    return files


def test_parts(tmp_path: Path) -> None:
    shards(tmp_path, 3)
    actual = run_padded(write_defined(read_folder(tmp_path)).model(Storage.MEMORY).whole())
    for number, wanted in enumerate(BERT.outputs["last_hidden_state"]):
        assert_same(actual["last_hidden_state"][number, : len(wanted)], wanted)


def test_a_part_is_missing(tmp_path: Path) -> None:
    shards(tmp_path, 3)[1].unlink()
    with pytest.raises(BuildError, match=r"lack \S+, .* or only a part was downloaded"):
        write_defined(read_folder(tmp_path))


def test_a_part_that_is_a_link_to_itself(tmp_path: Path) -> None:
    file = shards(tmp_path, 2)[1]
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(BuildError, match="cannot be read"):
        read_folder(tmp_path)


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    files = shards(tmp_path, 2)
    (tmp_path / "model-00003-of-00003.safetensors").write_bytes(files[0].read_bytes())
    with pytest.raises(BuildError, match=r"which model-00001-of-00002\.safetensors has, too"):
        write_defined(read_folder(tmp_path))


def test_what_is_missing_for_others_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padfree.builder.folders.export.PACKAGES", ("torch_that_nobody_has",))
    wanted = "does not know itself: nothing is known of the entry 'sinks'; exporting them needs torch_that_nobody_has"
    with pytest.raises(BuildError, match=wanted), source.opened(folder(tmp_path, {"sinks": 1})):
        pass


@pytest.mark.parametrize("name", ["nomic_own_names", "gte_new_own_names", "jina_v2"])
def test_code_of_a_folder_is_not_needed_where_its_family_is_known(name: str, tmp_path: Path) -> None:
    reference, said = tiny_folders.read(name), list[str]()
    assert "auto_map" in reference.config
    with source.opened(tiny_folders.write_reference(reference, tmp_path), lazily=True, say=said.append) as actual:
        model = actual.open(Storage.MEMORY, Phases(), said.append)
    assert "last_hidden_state" in [item.name for item in model.proto.graph.output]
    assert any("reading its weights by padfree's definition of" in line for line in said)


def test_code_of_a_folder_is_not_run_where_its_family_is_not_known(tmp_path: Path) -> None:
    code = {"AutoModel": "modeling_odd.OddModel"}
    wanted = r"runs no code of models and does not know this one: no definition is for the model_type 'odd'; export it"
    with (
        pytest.raises(BuildError, match=wanted),
        source.opened(folder(tmp_path, {"model_type": "odd", "auto_map": code})),
    ):
        pass


JINA = tiny_folders.read("jinav3_hub_query")


def test_adapters_are_named(tmp_path: Path) -> None:
    said: list[str] = []
    path = tiny_folders.write_reference(JINA, tmp_path)
    with source.opened(path, HeadOptions(adapter="retrieval.query"), lazily=True, say=said.append) as actual:
        model = actual.open(Storage.MEMORY, Phases(), said.append)
    assert_same(run_padded(model.whole())["last_hidden_state"][0], JINA.outputs["last_hidden_state"][0])
    assert (
        f"{path}: has adapters, of which none is taken unless --adapter names it: retrieval.query, separation" in said
    )


def test_adapters_that_are_not_there(tmp_path: Path) -> None:
    options = HeadOptions(adapter="retrieval")
    wanted = "--adapter retrieval: the model has retrieval.query, separation; choose of these"
    with (
        pytest.raises(BuildError, match=wanted),
        source.opened(tiny_folders.write_reference(JINA, tmp_path / "jina"), options),
    ):
        pass
    with (
        pytest.raises(BuildError, match="BERT has no adapters"),
        source.opened(folder(tmp_path / "bert", {}), options),
    ):
        pass
    with (
        pytest.raises(BuildError, match="and no definition is for the model_type"),
        source.opened(folder(tmp_path / "odd", {"model_type": "odd"}), options),
    ):
        pass


def test_entries_of_several_names(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "config.json", {"a": 3})
    assert keys.size("b", "a", default=1) == 3
    with pytest.raises(NotDefinedError, match="'c' is missing"):
        keys.size("c")
