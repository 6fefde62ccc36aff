# SPDX-License-Identifier: Apache-2.0
"""What commands are given as a model: repositories of the hub, and names and files that are no model."""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import cli
from padfree.builder.folders.hub import download, is_hub_id
from padfree.builder.folders.location import located

from tests.support.folders import VOCABULARY, WIDTH, write_folder, write_json, write_safetensors

MEAN = ("Pooling", {"pooling_mode": "mean"})


def test_names_of_repositories() -> None:
    assert is_hub_id(Path("BAAI/bge-small-en-v1.5"))
    assert not is_hub_id(Path("model.onnx"))
    assert not is_hub_id(Path("exports/model.onnx"))
    assert not is_hub_id(Path("/tmp/model"))


def test_a_repository_is_downloaded_or_the_reason_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "cache", modules=[MEAN])
    asked: list[str] = []

    def snapshot_download(name: str, **_: Any) -> str:
        asked.append(name)
        if name == "somebody/private":
            raise OSError("Repository Not Found")
        return str(folder)

    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    arguments = ["-o", str(tmp_path / "packed.onnx")]
    assert cli.main(["optimize", "somebody/small-encoder", *arguments]) == 0
    assert cli.main(["optimize", "somebody/private", *arguments]) == 1
    assert asked == ["somebody/small-encoder", "somebody/private"]
    said = capsys.readouterr().err
    assert "somebody/private: no such file or folder here, and the Hugging Face Hub does not give it (OSError:" in said
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert cli.main(["optimize", "somebody/small-encoder", *arguments]) == 1
    assert "pip install huggingface_hub" in " ".join(capsys.readouterr().err.split())


def test_the_hub_is_called_as_it_wants_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    folder = write_folder(tmp_path / "cache", modules=[MEAN])
    wanted = inspect.signature(hub.snapshot_download)

    def snapshot_download(*arguments: Any, **options: Any) -> str:
        wanted.bind(*arguments, **options)
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert download("somebody/small-encoder") == folder


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
    Path("texts.txt").write_text("a cat\n", encoding="utf-8")
    for given, wanted in (
        (
            "all-MiniLM-L6-v2",
            "all-MiniLM-L6-v2: no such file or folder here; give a model's folder, an .onnx file or a",
        ),
        ("all-MiniLM-L6-v2", "such as sentence-transformers/all-MiniLM-L6-v2"),
        ("model/model.safetensors", "model/model.safetensors: is a part of a model's folder; give the folder: model"),
        ("model/config.json", "model/config.json: is a part of a model's folder; give the folder: model"),
        ("alone.safetensors", "alone.safetensors: holds weights and does not say of which model"),
    ):
        assert cli.main([command[0], given, *command[1:]]) == 1
        assert wanted in capsys.readouterr().err
    assert not list(tmp_path.glob("out*")) + list(tmp_path.glob("repository"))


def test_plans_may_have_any_name(tmp_path: Path) -> None:
    plan = tmp_path / "model.bin"
    plan.write_bytes(b"an engine")
    write_json(tmp_path / "model.bin.json", {})
    assert located(plan) == plan


@pytest.mark.parametrize("command", ["inspect", "build", "run", "serve"])
@pytest.mark.parametrize("name", ["texts.txt", "texts.jsonl", "texts.parquet"])
def test_data_are_no_model(command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And no plan whose metadata are missing, which advised to write one over them."""
    if command == "serve":
        pytest.importorskip("uvicorn")
    path = tmp_path / name
    path.write_text("a text", encoding="utf-8")
    more = {"build": ["-o", "m.plan"], "run": ["--text", "a", "-o", "o.npz"]}
    assert cli.main([command, str(path), *more.get(command, [])]) == 1
    assert f"{path}: is no model, but data for one; give a model's folder" in " ".join(capsys.readouterr().err.split())
