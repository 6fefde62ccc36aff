# SPDX-License-Identifier: Apache-2.0
"""Models as commands are given them: repositories of the hub, and names and files that are no model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import padfree
import pytest
from padfree.builder import BuildError, cli
from padfree.builder.compare.candidates import Settings, open_candidates
from padfree.builder.folders import location
from padfree.builder.folders.hub import is_hub_id
from padfree.builder.folders.location import locate
from padfree.onnx_tools.files.model_file import load_model

from tests.support.folders import VOCABULARY, WIDTH, write_folder, write_json, write_safetensors

MEAN = ("Pooling", {"pooling_mode": "mean"})


def test_names_of_repositories() -> None:
    assert is_hub_id(Path("BAAI/bge-small-en-v1.5"))
    assert not is_hub_id(Path("model.onnx"))
    assert not is_hub_id(Path("exports/model.onnx"))
    assert not is_hub_id(Path("/tmp/model"))


@pytest.mark.parametrize("name", ["somebody/encoder", "model.onnx", "model"])
def test_links_that_lead_nowhere_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The hub is not asked for what stands here."""
    monkeypatch.chdir(tmp_path)
    Path("somebody").mkdir()
    Path(name).symlink_to("nowhere")
    with pytest.raises(BuildError, match=f"{name}: is a symbolic link to 'nowhere', which does not exist"):
        locate(name)


def test_commands_ask_for_a_revision_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands that take a model do, and so does padfree.Model."""
    pytest.importorskip("uvicorn")
    pytest.importorskip("pyarrow")
    asked: list[tuple[str, str]] = []

    def refuse(name: str, revision: str, _: Any) -> Path:
        asked.append((name, revision))
        raise BuildError(f"{name}: stop here")

    monkeypatch.setattr(location, "download", refuse)
    (tmp_path / "texts.txt").write_text("a cat\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    more = (["embed", "--input", "texts.txt", "-o", "out"], ["costs", "-o", "costs.json"])
    for command, *arguments in (*COMMANDS, *more):
        assert cli.main([command, "somebody/encoder", *arguments, "--revision", "v1.5"]) == 1
    with pytest.raises(BuildError, match="stop here"):
        padfree.Model("encoder", revision="v1.5")
    wanted = [("somebody/encoder", "v1.5")] * (len(COMMANDS) + len(more))
    assert asked == [*wanted, ("sentence-transformers/encoder", "v1.5")]


def test_a_repository_is_built_as_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "cache", modules=[MEAN])
    monkeypatch.setattr(location, "download", lambda *_: folder)
    assert cli.main(["optimize", "somebody/encoder", "-o", str(tmp_path / "hub.onnx")]) == 0
    assert cli.main(["optimize", str(folder), "-o", str(tmp_path / "folder.onnx")]) == 0
    by_hub, by_folder = (load_model(tmp_path / f"{name}.onnx").graph for name in ("hub", "folder"))
    assert by_hub == by_folder


def test_without_huggingface_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert cli.main(["optimize", "somebody/encoder", "-o", str(tmp_path / "packed.onnx")]) == 1
    assert "pip install huggingface_hub" in " ".join(capsys.readouterr().err.split())


COMMANDS = (
    ["optimize", "-o", "out.onnx"],
    ["build", "-o", "out.plan"],
    ["inspect"],
    ["compare"],
    ["bench", "--cpu"],
    ["triton", "-o", "repository", "--name", "small"],
    ["run", "--input", "texts.txt", "-o", "out.npz"],
    ["serve"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_what_is_no_model_is_named_with_what_to_give(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if command[0] == "triton":
        pytest.importorskip("tritonclient")
    if command[0] == "serve":
        pytest.importorskip("uvicorn")
    monkeypatch.chdir(tmp_path)
    folder = write_folder(Path("model"), model=None, modules=[MEAN])
    table = np.zeros((VOCABULARY, WIDTH), np.float32)
    write_safetensors(folder / "model.safetensors", {"embeddings.word_embeddings.weight": table})
    Path("alone.safetensors").write_bytes(b"weights")
    Path("model.Q8_0.gguf").write_bytes(b"GGUF")
    Path("texts.txt").write_text("a cat\n", encoding="utf-8")
    for inputs, wanted in (
        (
            "all-MiniLM-L6-v2",
            "all-MiniLM-L6-v2: no such file or folder here; give a model's folder, an .onnx file or a",
        ),
        ("all-MiniLM-L6-v2", "such as sentence-transformers/all-MiniLM-L6-v2"),
        ("model/model.safetensors", "model/model.safetensors: is a part of a model's folder; give the folder: model"),
        ("model/config.json", "model/config.json: is a part of a model's folder; give the folder: model"),
        ("model.Q8_0.gguf", "model.Q8_0.gguf: is a GGUF file, which has weights without the model's graph; give the"),
        ("alone.safetensors", "alone.safetensors: holds weights and does not say of which model"),
    ):
        assert cli.main([command[0], inputs, *command[1:]]) == 1
        assert wanted in capsys.readouterr().err
    assert not list(tmp_path.glob("out*")) + list(tmp_path.glob("repository"))


@pytest.mark.parametrize(
    ("name", "message"), [("texts.txt", "is a data file, not a model"), (".", "is a folder, which")]
)
def test_what_is_compared_is_a_file_of_a_model(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a cat\n", encoding="utf-8")
    with pytest.raises(BuildError, match=message):
        open_candidates(Path("model.onnx"), [tmp_path / name], Settings(), interface="packed")


def test_plans_may_have_any_name(tmp_path: Path) -> None:
    plan = tmp_path / "model.bin"
    plan.write_bytes(b"an engine")
    write_json(tmp_path / "model.bin.json", {})
    assert locate(plan) == plan


@pytest.mark.parametrize("command", ["inspect", "build", "run", "serve"])
@pytest.mark.parametrize("name", ["texts.txt", "texts.jsonl", "texts.parquet"])
def test_data_are_no_model(command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor are they taken for plans whose metadata are missing: that error advised to build a plan over them."""
    if command == "serve":
        pytest.importorskip("uvicorn")
    path = tmp_path / name
    path.write_text("a text", encoding="utf-8")
    more = {"build": ["-o", "m.plan"], "run": ["--text", "a", "-o", "o.npz"]}
    assert cli.main([command, str(path), *more.get(command, [])]) == 1
    assert f"{path}: is a data file, not a model; give a model's folder" in " ".join(capsys.readouterr().err.split())
