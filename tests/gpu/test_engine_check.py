# SPDX-License-Identifier: Apache-2.0
"""The matrix of engines, with rewritten files in onnxruntime in place of engines: what it checks, and what it finds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from padfree.builder.definitions.families import DEFINITIONS
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session

from tests.support import exports, tiny_folders

from . import engine_cases, engine_matrix
from .engine_cases import MADE, Entry, entries, prepare
from .engine_check import Check, check, make_file

PACKED = Entry("families", "modernbert_torchscript_sdpa", "packed", "fp32")
PADDED = Entry("families", "bert_mean_torchscript", "padded", "fp32")


@pytest.mark.parametrize("entry", [PACKED, PADDED, Entry("exports", "bart_p160_dy18", "packed", "fp32")])
def test_right_files_pass(entry: Entry, tmp_path: Path) -> None:
    result = check(entry, tmp_path, make_file)
    assert result["status"] == "passed"
    assert result["batches"] >= 7


@pytest.mark.parametrize("entry", [PACKED, PADDED])
def test_a_wrong_file_fails(entry: Entry, tmp_path: Path) -> None:
    def make_wrong(entry: Entry, source: Path) -> Path:
        model = rewrite(source, interface=entry.interface, verify=False).model
        weights = [tensor for tensor in model.graph.initializer if len(tensor.dims) == 2]
        values = onnx.numpy_helper.to_array(weights[-1]).copy()
        values[:, 0] *= -1  # one column of one weight
        weights[-1].CopyFrom(onnx.numpy_helper.from_array(values, weights[-1].name))
        save_model(model, source.with_name("wrong.onnx"))
        return source.with_name("wrong.onnx")

    with pytest.raises(AssertionError, match="root mean square"):
        check(entry, tmp_path, make_wrong)


def test_an_engine_of_the_same_bytes_is_kept(tmp_path: Path) -> None:
    def never(_entry: Entry, _source: Path) -> Path:
        raise AssertionError("built again")

    first = check(PADDED, tmp_path, make_file, [])
    assert first["status"] == "passed"
    assert check(PADDED, tmp_path, never, ["0123456789abcdef", first["made_of"]]) == {
        "status": "kept", "made_of": first["made_of"],
    }  # fmt: skip
    half = Entry(PADDED.source, PADDED.name, PADDED.interface, "fp16")
    with pytest.raises(AssertionError, match="built again"):
        check(half, tmp_path, never, [first["made_of"]])


def test_engines_are_proved_by_the_same_judges_on_the_same_kind_of_gpu() -> None:
    here = {"judges": "j", "gpu": "H200", "tensorrt": "10.6.0", "commit": "new"}
    right = {**vars(PACKED), "status": "passed", "made_of": "a", **here, "commit": "old"}
    others = [
        {"judges": "k"}, {"gpu": "H100"}, {"tensorrt": "10.7.0"}, {"status": "failed"}, {"status": "kept"},
        {"made_of": ""},
    ]  # fmt: skip
    records = [right, {**right, "made_of": "b"}, *({**right, "made_of": "c", **other} for other in others)]
    records += [{**vars(PADDED), "status": "passed", "commit": "older"}]  # a record from before there were digests
    assert engine_matrix.proved_by(records, here) == {PACKED.key: ["a", "b"]}


EMBEDDINGS = Entry("forms", "embeddings", "packed", "fp32")


def _as_a_form(folder: Path, fixture: str = "bert_embeddings_ts17") -> None:
    """Saves a fixture that takes embeddings in place of the form that would be exported."""
    onnx.save_model(exports.load(fixture), str(folder / "embeddings.onnx"))
    (folder / "forms.json").write_text(json.dumps(["embeddings"]))


def test_embeddings_are_told_from_ids_by_their_type(tmp_path: Path) -> None:
    _as_a_form(tmp_path)
    kinds = {item.name: (item.kind, item.high) for item in EMBEDDINGS.load(tmp_path)[1]}
    assert kinds["inputs_embeds"] == ("embeddings", 16)
    assert kinds["attention_mask"][0] == "mask"


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_models_that_take_embeddings_pass(interface: str, tmp_path: Path) -> None:
    _as_a_form(tmp_path)
    result = check(replace(EMBEDDINGS, interface=interface), tmp_path, make_file)
    assert result["status"] == "passed"
    assert result["batches"] == (7 if interface == "packed" else 10)


def test_a_larger_extent_takes_embeddings(tmp_path: Path) -> None:
    """Makes the check that is made of engines only, on the rewritten file: rows of floats are fed as they are."""
    _as_a_form(tmp_path, "xlnet_embeddings_ts17")  # part of this model stays padded, so that it has an extent
    model, inputs = EMBEDDINGS.load(tmp_path)
    with Session(make_file(EMBEDDINGS, tmp_path / "embeddings.onnx")) as session:
        found = Check(session, model, inputs, "fp32")
        found.wide_extent((9, 1, 4), session)
    assert found.batches == 1


@pytest.mark.parametrize(
    ("only", "made"),
    [
        (["forms/bloom*"], ["forms"]),
        (["families/*", "exports/*"], []),
        (["*"], list(MADE)),
        (["*/bloom/*"], list(MADE)),
    ],
)
def test_what_is_not_asked_for_is_not_exported(
    only: list[str], made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = list[list[str]]()
    monkeypatch.setattr(engine_cases.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(engine_cases.subprocess, "run", lambda command, **_: commands.append(command))
    prepare(tmp_path, only)
    assert [Path(command[-1]).stem for command in commands] == made


def test_forms_come_in_both_interfaces_and_all_precisions(tmp_path: Path) -> None:
    _as_a_form(tmp_path)
    found = {(item.interface, item.precision) for item in entries(tmp_path) if item.source == "forms"}
    assert found == {(i, p) for i in ("packed", "padded") for p in ("fp32", "fp16", "bf16")}


def test_every_family_comes_in_both_interfaces_and_all_precisions(tmp_path: Path) -> None:
    found = {(item.name.split("_torchscript")[0], item.interface, item.precision) for item in entries(tmp_path)}
    for family in ("bert", "modernbert", "deberta_v3", "t5", "nomic_bert", "mpnet"):
        wanted = {(family, i, p) for i in ("packed", "padded") for p in ("fp32", "fp16", "bf16")}
        assert wanted <= found


@pytest.mark.slow
def test_every_definition_comes_in_both_interfaces_and_all_precisions(tmp_path: Path) -> None:
    listed = [item for item in entries(tmp_path) if item.source == "definitions"]
    name_of = {item.name: tiny_folders.define(item.name, tmp_path / item.name).name for item in listed}
    assert {(name_of[item.name], item.interface, item.precision) for item in listed} == {
        (definition.name, i, p)
        for definition in DEFINITIONS
        for i in ("packed", "padded")
        for p in ("fp32", "fp16", "bf16")
    }


def test_what_is_recorded_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, ran = tmp_path / "engines.jsonl", list[list[str]]()

    def together(group: list[Entry], *_: Any) -> list[dict[str, Any]]:
        ran.append([item.key for item in group])
        statuses = ["passed", "died"]  # engines after a crash have no result
        return [{**vars(entry), "status": status} for entry, status in zip(group, statuses, strict=False)]

    monkeypatch.setattr(engine_matrix, "together", together)
    monkeypatch.setattr(engine_matrix, "commit", lambda: "abc")
    monkeypatch.setattr(engine_matrix, "digest", lambda _: "judges")
    monkeypatch.setattr(engine_matrix, "environment", lambda: {"commit": "abc"})
    monkeypatch.setattr(engine_matrix, "prepare", lambda *_: None)
    only = ["--only", "families/mpnet_torchscript_eager/*/fp32", "families/mpnet_torchscript_eager/packed/fp16"]
    command = ["engine_matrix", "--results", str(results), "--folder", str(tmp_path), *only]
    monkeypatch.setattr("sys.argv", command)
    assert engine_matrix.main() == 1
    assert [len(group) for group in ran] == [3]
    assert engine_matrix.main() == 1  # only the third engine is left
    assert [len(group) for group in ran] == [3, 1]
    monkeypatch.setattr("sys.argv", [*command, "--again"])
    assert engine_matrix.main() == 0
    assert [len(group) for group in ran] == [3, 1, 1]
    assert len(results.read_text().splitlines()) == 4
    assert json.loads(results.read_text().splitlines()[1])["status"] == "died"
