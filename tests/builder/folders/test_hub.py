# SPDX-License-Identifier: Apache-2.0
"""Which files of a repository are fetched, by huggingface_hub's own client from a stand-in hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import BuildError, cli
from padfree.builder.folders import hub_refusals
from padfree.builder.folders.hub_files import module_files, pickles_of, settings_of, weights_of
from padfree.builder.folders.location import locate

from tests.support import tiny_folders
from tests.support.fake_hub import COMMIT, FakeHub, serving
from tests.support.folders import write_dense, write_json

KIND = "sentence_transformers.models"
CODE = """
import json, sys
from padfree.builder.errors import BuildError
from padfree.builder.folders.hub import download

for name, revision in json.loads(sys.argv[1]):
    said = []
    try:
        folder = download(name, revision, said.append)
        there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        print(json.dumps({"folder": str(folder), "files": there, "said": said, "error": ""}))
    except BuildError as error:
        print(json.dumps({"folder": "", "files": [], "said": said, "error": str(error)}))
"""


def ask(hub: FakeHub, home: Path, *calls: tuple[str, str], **more: str) -> list[Mapping[str, Any]]:
    """The results of downloads, one after the other in a process of their own."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **more}
    command = [sys.executable, "-c", CODE, json.dumps(calls)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sentence_model(folder: Path, name: str = "bert", path: str = "") -> dict[str, bytes]:
    """A repository of sentence-transformers, including the files that padfree does not need."""
    tiny_folders.write_reference(tiny_folders.read(name), folder / path)
    settings = {"in_features": 16, "out_features": 12, "activation_function": "torch.nn.modules.activation.Tanh"}
    listed = [("", path, "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Dense", "Dense")]
    write_json(
        folder / "modules.json",
        [{"idx": 0, "path": location, "type": f"{KIND}.{kind}"} for _, location, kind in listed],
    )
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    write_json(folder / "2_Dense" / "config.json", settings)
    write_dense(folder, 2, 12, 16, seed=1)
    return {
        **files_of(folder), "modeling.py": b"raise SystemExit", "README.md": b"", "pytorch_model.bin": b"pickle",
        "2_Dense/pytorch_model.bin": b"pickle", "onnx/model.onnx": b"onnx", "openvino/openvino_model.xml": b"",
        "tf_model.h5": b"", "onnx/tokenizer.json": b"{}", ".gitattributes": b"",
    }  # fmt: skip


WANTED = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "config.json",
          "model.safetensors", "modules.json", "tokenizer_config.json"]  # fmt: skip


@pytest.mark.slow
def test_only_what_is_needed_is_fetched_and_the_cache_serves_without_the_hub(tmp_path: Path) -> None:
    hub = FakeHub({"somebody/encoder": sentence_model(tmp_path / "model")})
    home = tmp_path / "home"
    with serving(hub):
        first, again = ask(hub, home, ("somebody/encoder", ""), ("somebody/encoder", COMMIT))
    assert first["files"] == again["files"] == WANTED
    assert first["folder"].endswith(f"models--somebody--encoder/snapshots/{COMMIT}")
    size = len(hub.repositories["somebody/encoder"]["model.safetensors"]) / 1e6
    assert first["said"] == [f"somebody/encoder: fetches model.safetensors ({size:.3g} MB) of commit {COMMIT}"]
    assert again["said"] == []
    assert sorted(name for name, _ in hub.served) == WANTED  # every file once
    (offline,) = ask(hub, home, ("somebody/encoder", ""), HF_HUB_OFFLINE="1")
    assert offline["folder"] == first["folder"]
    assert offline["said"] == [
        f"somebody/encoder: the Hugging Face Hub is not reached (HF_HUB_OFFLINE is set); takes {first['folder']}"
    ]
    unreached, other = ask(hub, home, ("somebody/encoder", "main"), ("somebody/other", ""))
    assert unreached["folder"] == first["folder"]
    assert "huggingface_hub's cache does not have it, and the Hugging Face Hub is not reached (ConnectError" in other[
        "error"
    ]  # fmt: skip


@pytest.mark.slow
def test_what_the_hub_refuses_is_one_line(tmp_path: Path) -> None:
    folder = tiny_folders.write_reference(tiny_folders.read("bert"), tmp_path / "model")
    files = files_of(folder)
    pickled = {"config.json": files["config.json"], "pytorch_model.bin": b"pickle"}
    own_module = {**files, "modules.json": json.dumps([{"path": "", "type": f"{KIND}.WordEmbeddings"}]).encode()}
    part = {**files, "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "../b"}}'}
    del part["model.safetensors"]
    repositories = {
        "a/gated": files, "a/pickled": pickled, "a/data": {"README.md": b""}, "a/words": own_module, "a/part": part,
        "a/bare": {"config.json": files["config.json"]}, "a/bert": files,
    }  # fmt: skip
    with serving(FakeHub(repositories, gated={"a/gated"})) as hub:
        names = [*repositories, "a/nothing"]
        actual = ask(hub, tmp_path / "home", *((name, "") for name in names), ("a/bert", "v9"))
        assert [name for name, _ in hub.served].count("model.safetensors") == 1  # that of a/bert alone
    errors = dict(zip([*names, "revision"], (item["error"] for item in actual), strict=True))
    for name, wanted in {
        "a/gated": "a/gated: is gated: accept its conditions on https://huggingface.co/a/gated, and put a token",
        "a/pickled": "a/pickled: has pickled weights alone (pytorch_model.bin), and loading a pickle may run code",
        "a/data": "a/data: has no config.json, so it is no model",
        "a/words": "has the module sentence_transformers.models.WordEmbeddings, which padfree does not write",
        "a/part": "a/part: lacks model-1.safetensors (1 in all) of its weights",
        "a/bare": "a/bare: has neither weights (model.safetensors) nor an ONNX file",
        "a/nothing": "a/nothing: no such file or folder here, and no such repository on the Hugging Face Hub",
        "revision": "a/bert: has no revision 'v9'; name a branch, tag or commit of https://huggingface.co/a/bert/comm",
    }.items():
        assert wanted in errors[name]
        assert "\n" not in errors[name]


@pytest.mark.slow
def test_an_interrupted_file_goes_on_where_it_ended(tmp_path: Path) -> None:
    files = files_of(tiny_folders.write_reference(tiny_folders.read("bert"), tmp_path / "model"))
    files["model.safetensors"] += bytes(45_000_000)  # the client keeps what it has, in pieces of 10 MB
    with serving(FakeHub({"a/bert": files}, breaks={"model.safetensors"})) as hub:
        (actual,) = ask(hub, tmp_path / "home", ("a/bert", ""))
    assert Path(actual["folder"], "model.safetensors").read_bytes() == files["model.safetensors"]
    broken, rest = (size for name, size in hub.served if name == "model.safetensors")
    assert broken < len(files["model.safetensors"])
    assert rest < len(files["model.safetensors"])


def test_a_kind_of_model_that_is_not_known_is_taken_from_its_onnx_file(tmp_path: Path) -> None:
    files = sentence_model(tmp_path / "model")
    files["config.json"] = json.dumps({**tiny_folders.read("bert").config, "model_type": "odd"}).encode()
    files |= {"onnx/model.onnx_data": b"data", "onnx/model_quantized.onnx": b"", "onnx/model_O3.onnx": b""}
    with serving(FakeHub({"a/odd": files})) as hub:
        (actual,) = ask(hub, tmp_path / "home", ("a/odd", ""))
    assert "a/odd: padfree does not know this kind of model itself, so the ONNX file is taken" in actual["said"]
    assert actual["files"] == sorted([*WANTED, "onnx/model.onnx", "onnx/model.onnx_data"])


def test_files_of_repositories() -> None:
    names = {"config.json", "0_Transformer/config.json", "0_Transformer/model-1-of-2.safetensors", "x/vocab.txt",
             "0_Transformer/vocab.txt", "sentence_bert_config.json", "1_Pooling/config.json", "code.py",
             "training_args.bin", "config.json.py"}  # fmt: skip
    assert settings_of(names) == ["config.json", "sentence_bert_config.json"]
    assert settings_of(names, "0_Transformer") == ["0_Transformer/config.json", "0_Transformer/vocab.txt"]
    assert module_files(names, ["1_Pooling", "2_Normalize"]) == ["1_Pooling/config.json"]
    parts = {"a": "model-2-of-2.safetensors", "b": "model-1-of-2.safetensors", "c": "model-2-of-2.safetensors"}
    wanted = ["0_Transformer/model-1-of-2.safetensors", "0_Transformer/model-2-of-2.safetensors"]
    assert weights_of(names, "0_Transformer", parts) == wanted
    assert weights_of({"onnx/model_fp16.onnx", "onnx/model_q4.onnx"}, "", {}) == ["onnx/model_fp16.onnx"]
    assert weights_of({"onnx/model_q4.onnx"}, "", {}) == []
    assert pickles_of(names) == ["training_args.bin"]


def test_a_revision_is_for_repositories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_folders.write_reference(tiny_folders.read("bert"), tmp_path / "model")
    with pytest.raises(BuildError, match="--revision v1 is for repositories of the Hugging Face Hub, and this is none"):
        locate(folder, revision="v1")
    assert cli.main(["optimize", str(folder), "-o", str(tmp_path / "o.onnx"), "--revision", "v1"]) == 1
    assert cli.main(["build", "a/b", "c/d", "-o", str(tmp_path / "o"), "--revision", "v1"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("--revision v1 is for repositories") == 1
    assert "--revision v1 is of one repository, and there are 2 models; build each in a call of its own" in said


def test_a_full_disk_and_a_refused_token() -> None:
    full = hub_refusals.refusal("a/b", "", OSError(28, "No space left on device", "/cache/x"))
    assert "cache cannot be written (No space left on device: /cache/x); free space, or name another folder" in str(
        full
    )

    class ForbiddenError(Exception):
        response = type("Response", (), {"status_code": 403})()

    assert "does not take this user's token (ForbiddenError: no)" in str(
        hub_refusals.refusal("a/b", "", ForbiddenError("no\nmore"))
    )
    assert hub_refusals.refusal("a/b", "", ConnectionError("no route")) is None
