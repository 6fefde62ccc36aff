# SPDX-License-Identifier: Apache-2.0
"""`--verify whole` holds a definition against transformers' own model of the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from padfree.builder import BuildError, cli
from padfree.builder.folders import second_opinion, source
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder

from tests.support import tiny_folders

needs_torch = pytest.mark.needs_torch
NAMES = ("bert", "bert_classes", "bert_answers", "deberta1", "modernbert", "qwen3_classes", "t5", "albert_masked")


def said_of(folder: Path) -> list[str]:
    said: list[str] = []
    with source.opened(folder, say=said.append, lazily=True, with_second_opinion=True):
        return [line for line in said if "agrees with transformers" in line or "not compared with" in line]


@needs_torch
@pytest.mark.parametrize("name", NAMES)
def test_definitions_agree(name: str, tmp_path: Path) -> None:
    (line,) = said_of(tiny_folders.write_reference(tiny_folders.read(name), tmp_path / "model"))
    assert "padfree's definition agrees with transformers " in line
    assert line.endswith("on 3 random texts")


@needs_torch
def test_a_definition_of_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folders.write_reference(tiny_folders.read("bert"), tmp_path / "model")
    other = read_folder(tiny_folders.write_reference(tiny_folders.read("bert_epsilon"), tmp_path / "other"))
    monkeypatch.setattr(second_opinion, "write_defined", lambda _: write_defined(other))
    with pytest.raises(BuildError, match=r"definition of it differs from transformers \S+ by \S+ of an answer"):
        said_of(folder)


@needs_torch
def test_what_transformers_cannot_load_is_said(tmp_path: Path) -> None:
    folder = tiny_folders.write_reference(tiny_folders.read("nomic_own_names"), tmp_path / "model")
    (line,) = said_of(folder)
    assert "not compared with transformers, because the folder refers to code of its own, which padfree" in line


def test_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoImports:
        util = type("util", (), {"find_spec": staticmethod(lambda _: None)})

    monkeypatch.setattr(second_opinion, "importlib", NoImports)
    (line,) = said_of(tiny_folders.write_reference(tiny_folders.read("bert"), tmp_path / "model"))
    assert line.endswith("not compared with transformers, because torch and transformers are not installed")


def test_only_whole_verification_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(source, "compare_with_transformers", lambda folder, _: asked.append(folder.path))
    folder = tiny_folders.write_reference(tiny_folders.read("bert"), tmp_path / "model")
    for more in ([], ["--no-verify"], ["--verify", "whole"]):
        assert cli.main(["optimize", str(folder), "-o", str(tmp_path / "packed.onnx"), *more]) == 0
    assert asked == [folder]
