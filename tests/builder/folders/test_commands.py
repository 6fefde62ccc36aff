# SPDX-License-Identifier: Apache-2.0
"""Every command that takes a model also takes a folder, and what is built from a folder keeps its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from padfree.builder import cli
from padfree.builder.engine import build
from padfree.builder.engine.engine_builder import BuiltEngine, EngineBuilder
from padfree.builder.engine.phases import Phases
from padfree.builder.engine.plan_writing import describe_plan, write_described
from padfree.builder.engine.preparation import metadata_of
from padfree.builder.folders.companions import kept_files
from padfree.onnx_tools import load_model
from padfree.runtime import Profile
from padfree.runtime.gpu.device import Device
from padfree.runtime.plan_files import open_plan, parse_metadata
from padfree.runtime.texts import TextReader, tokenizer_path

from tests.support.folders import write_folder

MODULES = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
SETTINGS = {"prompts": {"query": "find: "}, "default_prompt_name": None, "similarity_fn_name": "cosine"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "small", modules=MODULES, max_seq_length=32, settings=SETTINGS)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("a cat\nthe cat sat on the mat\n", encoding="utf-8")
    return path


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(folder), "--strict", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["file"], shown["kind"]) == (str(folder), "original")
    assert [item["name"] for item in shown["outputs"]] == ["sentence_embedding"]
    assert shown["coverage"]["costs"]["lengths"]["max"] == 32  # texts are cut at 32 tokens, though the model takes more
    text = shown["text"]
    assert len(text.pop("tokenizer_sha256")) == 64
    assert text == {
        "task": "sentence-embedding",
        "max_length": 32,
        "prompts": {"query": "find: "},
        "default_prompt": None,
        "pooling": ["mean"],
        "normalize": True,
        "similarity": "cosine",
        "labels": [],
        "activation": "",
        "truncation_side": "right",
        "token_types": True,
        "pools_prompt": True,
    }


def test_compare(folder: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    assert cli.main(["compare", str(folder), str(packed), "--data", str(texts)]) == 0
    assert "PASSED" in capsys.readouterr().out
    assert cli.main(["compare", str(folder), str(packed), "--data", str(texts), "--pooling", "cls"]) == 1
    capsys.readouterr()
    assert cli.main(["compare", str(folder), str(packed), "--emit-polygraphy", str(tmp_path / "emitted")]) == 1
    assert "give an .onnx file that stays" in capsys.readouterr().err


@pytest.mark.slow
def test_bench(folder: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    command = ["bench", str(folder), "--cpu", "--batch", "2", "--seq-len", "16", "--json", str(record)]
    assert cli.main(command) == 0
    assert json.loads(record.read_text())["case"].startswith("small, 2 x 16")


def test_triton(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tritonclient")
    repository = tmp_path / "repository"
    assert cli.main(["triton", str(folder), "-o", str(repository), "--name", "small"]) == 0
    assert (repository / "small_tokenizer" / "1" / "tokenizer.json").read_bytes() == (
        folder / "tokenizer.json"
    ).read_bytes()
    assert 'string_value: "32"' in (repository / "small_tokenizer" / "config.pbtxt").read_text()
    ensemble = (repository / "small_text" / "config.pbtxt").read_text()
    assert 'name: "sentence_embedding"' in ensemble
    assert "last_hidden_state" not in ensemble


def test_build_prepares_a_folder_before_it_asks_for_a_gpu(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_machine(*_: Any, **__: Any) -> None:
        raise build.BuildError("no machine in this test")

    monkeypatch.setattr(build, "check_machine", no_machine)
    plan = tmp_path / "small.plan"
    assert cli.main(["build", str(folder), "-o", str(plan), "--no-timing-cache"]) == 1
    assert "no machine in this test" in capsys.readouterr().err
    assert not plan.exists()


def test_a_plan_keeps_what_the_folder_says(folder: Path, tmp_path: Path) -> None:
    packed, plan = tmp_path / "packed.onnx", tmp_path / "small.plan"
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    raw = metadata_of(load_model(packed))
    kept = kept_files(packed, plan, parse_metadata(raw, "test"))
    machine = SimpleNamespace(tensorrt_version="10.6.0", device=Device(0, "NVIDIA H200", 9, 0), phases=Phases())
    profile = Profile(min_tokens=1, opt_tokens=10, max_tokens=100, max_batch=4, max_seq_len=16)
    built = BuiltEngine(b"an engine", {})
    builder = cast(EngineBuilder, machine)
    write_described(plan, built, describe_plan(built, raw, profile, builder, {}), builder, kept)
    metadata = open_plan(plan)
    reader = TextReader(plan, metadata)
    assert reader.max_length == 16  # the profile's limit, which is below the folder's 32
    tokens = reader.read(["word " * 40, "a cat"], prompt_name="query")
    assert (tokens.cut, max(tokens.seq_lens)) == (1, 16)
    assert tokenizer_path(plan).read_bytes() == (folder / "tokenizer.json").read_bytes()
