# SPDX-License-Identifier: Apache-2.0
"""Repositories of several models and versions: what is there stays, and a server may read it meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import BuildError
from padfree.builder.triton import Repository, ServingOptions, moves, publishing, write_repository
from padfree.builder.triton.config import read_text
from padfree.builder.triton.moves import Moves
from padfree.contract.staging import SUFFIX, partial_path

pytest.importorskip("tritonclient.grpc")

ModelWriter = Callable[..., Path]
PlanWriter = Callable[..., Path]


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def versions(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.fixture
def write(write_plan: PlanWriter, tmp_path: Path) -> Callable[..., Repository]:
    """Writes a plan whose profile takes `tokens` into tmp_path / "models"."""

    def write(name: str = "bert", *, tokens: int = 100, **changes: Any) -> Repository:
        arguments = {key: changes.pop(key) for key in ("version", "overwrite") if key in changes}
        plan = write_plan(tensorrt=changes.pop("tensorrt", "10.6.0"), profile={"max_tokens": tokens})
        options = ServingOptions(name, **{"server": "24.11", "backend": "tensorrt", **changes})
        return write_repository(plan, tmp_path / "models", options, **arguments)

    return write


Write = Callable[..., Repository]


def test_the_first_model_stays_when_a_second_comes(write: Write) -> None:
    folder = write("first").folder
    first, inode = content(folder / "first"), folder.stat().st_ino
    (folder / "mine").mkdir()
    (folder / "mine" / "config.pbtxt").write_text("a model of somebody else")
    (folder / "thesis.txt").write_text("mine")
    before = content(folder)
    write("second")
    assert content(folder / "first") == first
    assert folder.stat().st_ino == inode  # the folder that a container has mounted
    after = content(folder)
    assert {name for name in before if after[name] != before[name]} == {"Dockerfile", "kubernetes.yaml", "padfree.json"}
    assert sorted(path.name for path in folder.iterdir()) == [
        *(
            ".dockerignore",
            "Dockerfile",
            "first",
            "kubernetes.yaml",
            "mine",
            "padfree.json",
            "padfree.tar",
            "second",
            "thesis.txt",
        )
    ]


def test_another_plan_is_another_version(write: Write) -> None:
    folder = write().folder
    first = content(folder / "bert" / "1")
    actual = write(tokens=90)
    assert (actual.version, actual.there) == (2, False)
    assert content(folder / "bert" / "1") == first
    assert content(folder / "bert" / "2") != first
    config = read_text(folder / "bert" / "config.pbtxt")
    assert config.parameters["padfree_max_tokens"].string_value == "90"
    listed = json.loads((folder / "bert" / "padfree.json").read_text())
    assert sorted(listed["versions"]) == ["1", "2"]
    actual = write(tokens=90)
    assert (actual.version, actual.there) == (2, True)
    (folder / "bert" / "7").mkdir()  # by hand
    assert write(tokens=90).version == 8


def test_versions_that_are_asked_for(write: Write) -> None:
    folder = write(version=3).folder
    assert versions(folder / "bert") == ["3"]
    kept = content(folder)
    with pytest.raises(BuildError, match=r"bert/3 is there, with other files; leave --version out .* --overwrite"):
        write(tokens=90, version=3)
    with pytest.raises(BuildError, match=r"--version 2: version 3 is there, newer, .* pass --version 4"):
        write(tokens=90, version=2)
    for number in (0, -1, 2**63):
        with pytest.raises(BuildError, match=f"version {number}, allowed: 1 to 9223372036854775807"):
            write(version=number)
    assert content(folder) == kept
    assert write(version=3).there
    write(tokens=90, version=3, overwrite=True)
    assert versions(folder / "bert") == ["3"]
    assert json.loads((folder / "bert" / "3" / "model.plan.json").read_text())["engine"]["profile"]["max_tokens"] == 90


def test_what_python_and_users_put_there(write: Write) -> None:
    folder = write(backend="python", server=None).folder
    for location in (folder / "bert" / "1", folder / "bert", folder):
        (location / "__pycache__").mkdir()
        (location / "__pycache__" / "model.cpython-312.pyc").write_bytes(b"compiled")
    (folder / "bert" / "labels.txt").write_text("mine")
    assert write(backend="python", server=None).there
    assert write(backend="python", server=None, tokens=90).version == 2
    assert (folder / "bert" / "labels.txt").read_text() == "mine"
    assert (folder / "bert" / "1" / "__pycache__" / "model.cpython-312.pyc").is_file()


@pytest.mark.parametrize("name", ["bert/config.pbtxt", "bert/batchstrategy.so", "Dockerfile", ".dockerignore"])
def test_what_was_edited_is_lost_only_when_asked(write: Write, name: str) -> None:
    folder = write().folder
    with (folder / name).open("ab") as file:
        file.write(b"# edited\n")
    before = content(folder)
    with pytest.raises(BuildError, match=f"{name} was changed since padfree triton wrote it; .* pass --overwrite"):
        write(tokens=90)
    assert content(folder) == before
    write(tokens=90, overwrite=True)
    assert not (folder / name).read_bytes().endswith(b"# edited\n")


def test_what_others_wrote_is_not_replaced(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM mine\n")
    with pytest.raises(BuildError, match="Dockerfile is a file that padfree triton did not write"):
        write()
    assert content(folder) == {"Dockerfile": b"FROM mine\n"}
    (folder / "Dockerfile").unlink()
    (folder / "bert" / "1").mkdir(parents=True)
    (folder / "bert" / "1" / "model.plan").write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(BuildError, match=r"bert holds files that padfree triton did not write .*: 1; choose"):
            write(overwrite=overwrite)
    assert content(folder) == {"bert/1/model.plan": b"mine"}


def test_files_of_another_backend_go(write: Write) -> None:
    folder = write().folder
    assert (folder / "bert" / "batchstrategy.so").is_file()
    write(backend="python")
    assert not (folder / "bert" / "batchstrategy.so").exists()  # the server would load it for any backend
    assert sorted(json.loads((folder / "bert" / "padfree.json").read_text())["files"]) == ["config.pbtxt"]


def test_text_models_have_one_version(write: Write, tokenizer: Path) -> None:
    folder = write().folder
    actual = write(tokenizer=tokenizer)  # the encoder is there already
    assert (actual.version, actual.there) == (1, False)
    assert write(tokenizer=tokenizer).there
    with pytest.raises(BuildError, match="the repository has bert_text, which chains the newest version of bert"):
        write(tokens=90)
    assert write(tokens=90, tokenizer=tokenizer).version == 2
    for name in ("bert", "bert_tokenizer", "bert_text"):
        assert versions(folder / name) == ["1", "2"]
    with pytest.raises(BuildError, match="bert_text is the ensemble of the model 'bert', and would become the encoder"):
        write("bert_text")
    assert write("other", tokenizer=tokenizer).version == 1


def test_the_image_serves_all_models(write: Write, packed_model: ModelWriter, tokenizer: Path) -> None:
    folder = write("first").folder
    assert "pip3" not in (folder / "Dockerfile").read_text()
    write("second", backend="python")
    actual = write_repository(packed_model(), folder, ServingOptions("third", tokenizer=tokenizer))
    text = (folder / "Dockerfile").read_text()
    assert "# The plans of first, second run on NVIDIA H200 (compute capability 9.0).\n" in text
    assert "# The plan of first loads in TensorRT 10.6.0 alone.\n" in text
    for package in ("tokenizers>=0.20", "onnxruntime>=1.20", "tensorrt==10.6.0.*", "cuda-python>=12.8"):
        assert f"'{package}'" in text
    assert "plugins=/opt/padfree/lib/libpadfree_register.so" in text
    assert actual.server.release == "24.11"  # the repository's release, although the newest would do
    assert [needs.model for needs in actual.needs] == ["first", "second", "third"]
    assert actual.arguments == ("--backend-config=tensorrt,plugins=/opt/padfree/lib/libpadfree_register.so",)
    before = content(folder)
    write("first")  # which model was written last makes no difference
    assert content(folder) == before


def test_models_of_other_servers(write: Write) -> None:
    folder = write("first").folder
    before = content(folder)
    with pytest.raises(BuildError, match=r"'first' for the server of NGC 24.11 with TensorRT 10.6.0, and 'second'"):
        write("second", tensorrt="10.9.0", server="25.03")
    write("third", backend="python", server="24.11", tensorrt="10.5.0")
    with pytest.raises(BuildError, match=r"plan of TensorRT 10\.5\.0, and 'fourth' has one of 10\.4\.0"):
        write("fourth", backend="python", server="24.11", tensorrt="10.4.0")
    assert {name: data for name, data in content(folder).items() if name.startswith("first")} == {
        name: data for name, data in before.items() if name.startswith("first")
    }
    assert not (folder / "second").exists()
    assert not (folder / "fourth").exists()


def test_a_failure_on_the_way_changes_nothing(write: Write, monkeypatch: pytest.MonkeyPatch, tokenizer: Path) -> None:
    """Every rename in turn fails, as on a disk with errors."""
    folder = write(tokenizer=tokenizer).folder
    before, renames, rename, replace, last = content(folder), [0], Path.rename, Path.replace, [0]

    def failing(change: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def run(path: Path, target: Path) -> Path:
            renames[0] += 1
            if renames[0] == last[0]:
                raise OSError(5, "Input/output error")
            return change(path, target)

        return run

    monkeypatch.setattr(Path, "rename", failing(rename))
    monkeypatch.setattr(Path, "replace", failing(replace))
    write_again = partial(write, tokens=90, tokenizer=tokenizer, version=1, overwrite=True)
    for number in range(1, 8):
        renames[0], last[0] = 0, number
        with contextlib.suppress(BuildError):
            write_again()
            break
        assert content(folder) == before, number
    assert number > 4  # at least: the old version out; the new one, the manifest and the configuration in
    assert content(folder) != before


def test_a_full_disk(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publishing, "write_version", full)
    with pytest.raises(BuildError, match=r"cannot be written \(No space left on device\); nothing was changed"):
        write()
    assert not (tmp_path / "models").exists()


def test_a_file_that_cannot_be_written_is_named_by_its_model(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(folder: Path, _files: object) -> None:
        assert folder.name.endswith(SUFFIX)
        raise BuildError(f"'{folder / 'model.onnx'}' cannot be written")

    monkeypatch.setattr(publishing, "write_version", full)
    with pytest.raises(BuildError, match=re.escape(f"'{tmp_path / 'models' / 'bert' / 'model.onnx'}' cannot be")):
        write()


def test_the_order_that_a_server_sees(write: Write, monkeypatch: pytest.MonkeyPatch, tokenizer: Path) -> None:
    """Versions get their numbers once complete; configurations follow them, and the ensemble's comes last of all."""
    folder, seen = write(tokenizer=tokenizer).folder, []
    into = Moves.into

    def watch(self: Moves, staged: Path, path: Path) -> None:
        assert staged.parent == path.parent  # on the same file system, and the folder keeps its inode
        assert not staged.name[:1].isdigit()
        into(self, staged, path)
        seen.append(path.relative_to(folder).as_posix())

    monkeypatch.setattr(Moves, "into", watch)
    write(tokens=90, tokenizer=tokenizer)
    assert seen == [
        *("bert/2", "bert/padfree.json", "bert/config.pbtxt"),
        *("bert_tokenizer/2", "bert_tokenizer/padfree.json"),
        *("bert_text/2", "bert_text/padfree.json"),
    ]


def test_what_a_killed_process_left_is_removed(write: Write) -> None:
    folder = write().folder
    left = [partial_path(path) for path in (folder / "bert" / "version", folder / "Dockerfile")]
    others = [folder / "bert" / ".version.mine.partial", partial_path(folder / "mine.plan")]
    for path in (*left, *others):
        path.mkdir()
        (path / "model.plan").touch()
    write()
    assert [path.exists() for path in left] == [False, False]
    assert [path.exists() for path in others] == [True, True]


def test_a_first_write_that_was_killed(write: Write, tmp_path: Path) -> None:
    location = tmp_path / "models" / "bert"
    location.mkdir(parents=True)
    partial_path(location / "version").mkdir()
    partial_path(location / "config.pbtxt").touch()
    assert write().version == 1
    assert sorted(path.name for path in location.iterdir()) == ["1", "batchstrategy.so", "config.pbtxt", "padfree.json"]


def test_two_commands_at_once(packed_model: ModelWriter, tmp_path: Path) -> None:
    model, folder = packed_model(), tmp_path / "models"
    names = [f"model{number}" for number in range(6)]
    threads = [threading.Thread(target=write_repository, args=(model, folder, ServingOptions(name))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == names
    assert [versions(folder / name) for name in names] == [["1"]] * 6


def test_folders_where_no_repository_can_be(packed_model: ModelWriter, tmp_path: Path) -> None:
    model = packed_model()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    cases = [(tmp_path / "file", "is no folder"), (tmp_path / "pipe", "is no folder"), (Path("/dev/null"), "no folder")]
    for path, message in (*cases, (tmp_path / "no" / "models", "mkdir -p")):
        with pytest.raises(BuildError, match=message):
            write_repository(model, path, ServingOptions("bert"), overwrite=True)
    (tmp_path / "models" / "bert").mkdir(parents=True)  # an empty folder may be used
    write_repository(model, tmp_path / "models", ServingOptions("bert"))
    (tmp_path / "models" / "other").touch()
    with pytest.raises(BuildError, match="other is no folder; choose another --name"):
        write_repository(model, tmp_path / "models", ServingOptions("other"))


def test_a_model_from_its_own_repository(write: Write) -> None:
    folder = write().folder
    plan = folder / "bert" / "1" / "model.plan"
    before = content(folder)
    write_repository(plan, folder, ServingOptions("bert", "tensorrt", server="24.11"), version=1, overwrite=True)
    assert content(folder) == before


def test_manifests_are_not_trusted(write: Write) -> None:
    folder = write("first").folder
    manifest = folder / "first" / "padfree.json"
    raw = json.loads(manifest.read_text())
    raw["needs"]["engine_tensorrt"] = "10.6.0' && rm -rf / '"
    raw["needs"]["backend"] = "python"
    manifest.write_text(json.dumps(raw))
    with pytest.raises(BuildError, match="does not say what the model needs"):
        write("second")


def test_moves_are_taken_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    before = sorted(tmp_path.rglob("*"))

    def change() -> None:
        with Moves() as changes:
            changes.folder(tmp_path / "made")
            changes.file(tmp_path / "made" / "new", b"new")()
            changes.file(tmp_path / "file", b"new")()
            staged = changes.aside(tmp_path / "folder")
            staged.mkdir()
            changes.into(staged, tmp_path / "folder")
            assert (tmp_path / "file").read_text() == "new"
            assert not (tmp_path / "folder" / "old").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change()
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "old"
    moves.remove(tmp_path / "nothing")
