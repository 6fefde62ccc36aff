# SPDX-License-Identifier: Apache-2.0
"""Model files: what is broken is named, and a file is written completely or not at all."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools import ModelFileError, load_model, rewrite, save_model
from padfree.onnx_tools.files import model_file
from padfree.onnx_tools.files.external_data import model_tensors

from tests.support.encoder import HIDDEN, VOCABULARY, one_layer


def small_model(seed: int = 0) -> onnx.ModelProto:
    weights = [np.random.default_rng(seed + i).standard_normal((40, 40)).astype(np.float32) for i in range(2)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Constant", [], ["w1"], value=numpy_helper.from_array(weights[1])),
        helper.make_node("MatMul", ["h", "w1"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 40])],
        [numpy_helper.from_array(weights[0], "w0")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    model = small_model()
    save_model(model, tmp_path / "m.onnx")
    assert load_model(str(tmp_path / "m.onnx")) == model
    assert names(tmp_path) == ["m.onnx"]


def own_model(seed: int = 0) -> onnx.ModelProto:
    """A small model whose metadata says that padfree wrote it."""
    model = small_model(seed=seed)
    onnx.helper.set_model_props(model, {"padfree": '{"format": 1}'})
    return model


def test_external_data_round_trip_and_replacement(tmp_path: Path) -> None:
    model = own_model()
    before = model.SerializeToString()
    path = tmp_path / "m[1].onnx"
    save_model(model, path, external_data_bytes=10_000)
    assert model.SerializeToString() == before
    (data,) = [name for name in names(tmp_path) if name.endswith(".data")]
    assert path.stat().st_size < 2_000
    assert load_model(path) == model
    onnx.checker.check_model(str(path))

    other = own_model(seed=5)
    save_model(other, path, external_data_bytes=10_000)
    assert load_model(path) == other
    assert len(names(tmp_path)) == 2
    assert data not in names(tmp_path)
    save_model(other, path)
    assert names(tmp_path) == ["m[1].onnx"]


def test_data_files_of_others_stay(tmp_path: Path) -> None:
    """A data file is removed if its name has padfree's form and the replaced file, written by padfree, refers to it."""
    path = tmp_path / "m.onnx"
    save_model(own_model(), path, external_data_bytes=10_000)
    (own,) = [name for name in names(tmp_path) if name.endswith(".data")]
    kept = ["m.onnx.data", "m.onnx.train.data", "m.onnx.0123456789abcdef.data", "m.onnx.ABCDEF0123456789.data"]
    for name in kept:
        (tmp_path / name).touch()
    save_model(own_model(seed=5), path)
    assert names(tmp_path) == sorted([*kept, "m.onnx"])
    assert own not in kept


def test_data_of_a_model_that_padfree_did_not_write_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save_model(small_model(), path, external_data_bytes=10_000)
    before = names(tmp_path)
    save_model(own_model(seed=5), path)
    assert names(tmp_path) == before


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_data_of_a_model_with_another_name_stays(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    save_model(own_model(), tmp_path / "m.onnx", external_data_bytes=10_000)
    (tmp_path / "m.onnx").rename(tmp_path / "other.onnx")
    link(tmp_path / "m.onnx", tmp_path / "other.onnx")
    save_model(own_model(seed=5), tmp_path / "m.onnx")
    assert load_model(tmp_path / "other.onnx") == own_model()


def test_a_failure_leaves_data_that_the_old_file_has_in_common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal weights get equal names: the data that could not be written again still belongs to the existing model."""
    path = tmp_path / "m.onnx"
    save_model(own_model(), path, external_data_bytes=10_000)
    before = names(tmp_path)

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(model_file, "write_atomically", full)
    with pytest.raises(ModelFileError, match="No space left on device"):
        save_model(own_model(), path, external_data_bytes=10_000)
    assert names(tmp_path) == before
    assert load_model(path) == own_model()
    with pytest.raises(ModelFileError, match="No space left on device"):
        save_model(own_model(seed=5), path, external_data_bytes=10_000)
    assert names(tmp_path) == before


@pytest.mark.parametrize("external_data_bytes", [10_000, 2**31])
def test_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, external_data_bytes: int) -> None:
    path = tmp_path / "m.onnx"
    save_model(small_model(), path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, hard))
    try:
        with pytest.raises(ModelFileError, match=r"m\.onnx' cannot be written: .*; nothing was changed; free space"):
            save_model(small_model(seed=5), path, external_data_bytes=external_data_bytes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["m.onnx"]
    assert load_model(path) == small_model()


def test_unwritable_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a folder"):
        save_model(small_model(), tmp_path)
    with pytest.raises(ModelFileError, match=r"No such file or directory.*choose another folder"):
        save_model(small_model(), tmp_path / "none" / "m.onnx")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist; give the path"),
        (b"", "is empty; export"),
        (b"PK\x03\x04 this is a zip file, not a model", "is not an ONNX model, or its end is missing"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "fetch it: git lfs pull"),
        (b"GGUF\x03\x00\x00\x00" + bytes(100), "give the Hugging Face folder that it was made from"),
        (b"<!DOCTYPE html><html>not found</html>", "is a web page or XML, not a model; download it again"),
        (b'{"not": "onnx"}', "is not an ONNX model, or its end is missing"),
        (small_model().SerializeToString()[:5000], "is not an ONNX model, or its end is missing"),
        (small_model().SerializeToString()[:-6], "is not an ONNX model, or its end is missing"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "0 operator sets and 0 outputs"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError, match=words) as error:
        load_model(path)
    assert str(path) in str(error.value)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a folder"):
        load_model(tmp_path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    content = small_model().SerializeToString()
    path = tmp_path / "m.onnx"
    for end in [*range(1, 200, 7), *range(200, len(content), 997), *range(len(content) - 60, len(content))]:
        path.write_bytes(content[:end])
        with pytest.raises(ModelFileError):
            load_model(path)


def external_model(location: str, **entries: int | str) -> onnx.ModelProto:
    model = small_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.append(onnx.StringStringEntryProto(key=key, value=str(value)))
    return model


@pytest.mark.parametrize(
    ("location", "entries", "words"),
    [
        ("gone.bin", {}, r"'w0'.*'gone\.bin', which cannot be read: No such file"),
        ("short.bin", {"offset": 0, "length": 6400}, r"bytes 0 to 6400 of 'short\.bin', which has 100"),
        ("short.bin", {"offset": -4, "length": 4}, "bytes -4 to 0"),
        ("../outside.bin", {}, "allowed is a file in the model's folder"),
        ("/etc/hostname", {}, "allowed is a file in the model's folder"),
        ("link.bin", {}, "allowed is a file in the model's folder"),
        ("", {}, "allowed is a file in the model's folder"),
        ("sub/../short.bin", {}, "allowed is a file in the model's folder"),
        ("loop.bin", {}, "'loop.bin', which cannot be read: Too many levels of symbolic links"),
        ("pipe.bin", {}, "which is no regular file"),
        ("sub", {}, "which is no regular file"),
        ("whole.bin", {"offset": 6396, "length": 6400}, r"bytes 6396 to 12796 of 'whole\.bin', which has 6400"),
        ("whole.bin", {"offset": 1 << 62, "length": 1 << 62}, r"'whole\.bin', which has 6400"),
        ("whole.bin", {"offset": 0, "length": 100}, r"FLOAT \[40, 40\], 6400 bytes, and has 100 in 'whole\.bin'"),
        ("whole.bin", {"length": "many"}, "offset or length that is no number"),
    ],
)
def test_bad_external_data_is_refused(tmp_path: Path, location: str, entries: dict[str, int | str], words: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(6400))
    (folder / "short.bin").write_bytes(bytes(100))
    (folder / "whole.bin").write_bytes(bytes(6400))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    (folder / "sub").mkdir()
    os.mkfifo(folder / "pipe.bin")
    (folder / "m.onnx").write_bytes(external_model(location, **entries).SerializeToString())
    with pytest.raises(ModelFileError, match=words):
        load_model(folder / "m.onnx")


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    values = np.arange(1600, dtype=np.float32)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.bin").write_bytes(bytes(64) + values.tobytes())
    (tmp_path / "link.bin").symlink_to(tmp_path / "weights" / "w.bin")
    (tmp_path / "m.onnx").write_bytes(external_model("link.bin", offset=64).SerializeToString())
    loaded = load_model(tmp_path / "m.onnx").graph.initializer[0]
    assert np.array_equal(numpy_helper.to_array(loaded).reshape(-1), values)


def test_a_cache_of_links_is_read(tmp_path: Path) -> None:
    """As hubs store files: a folder of links to files with other names, which lie next to each other."""
    values = np.arange(1600, dtype=np.float32)
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "aa").write_bytes(external_model("model.onnx_data").SerializeToString())
    (blobs / "bb").write_bytes(values.tobytes())
    (snapshot / "model.onnx").symlink_to(blobs / "aa")
    (snapshot / "model.onnx_data").symlink_to(blobs / "bb")
    loaded = load_model(snapshot / "model.onnx").graph.initializer[0]
    assert np.array_equal(numpy_helper.to_array(loaded).reshape(-1), values)


@pytest.mark.parametrize("entries", [{}, {"length": 10_000}])
def test_data_that_is_a_link_of_git_lfs_is_called_that(tmp_path: Path, entries: dict[str, int]) -> None:
    (tmp_path / "m.onnx").write_bytes(external_model("m.onnx_data", **entries).SerializeToString())
    (tmp_path / "m.onnx_data").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(ModelFileError, match=r"m\.onnx_data' is a link of git lfs, .*; fetch it: git lfs pull"):
        load_model(tmp_path / "m.onnx")


def test_several_data_files(tmp_path: Path) -> None:
    model = small_model()
    for tensor, name in zip(model_tensors(model.graph), ("a.bin", "b.bin"), strict=True):
        (tmp_path / name).write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.append(onnx.StringStringEntryProto(key="location", value=name))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert load_model(tmp_path / "m.onnx") == small_model()


def test_data_is_not_multiplied(tmp_path: Path) -> None:
    """A thousand tensors over the same bytes would take a thousand times their memory."""
    model = external_model("whole.bin")
    for count in range(1000):
        model.graph.initializer.add().CopyFrom(model.graph.initializer[0])
        model.graph.initializer[-1].name = f"again{count}"
    (tmp_path / "whole.bin").write_bytes(bytes(6400))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="'again3' take 32000 bytes from data files of 6400, allowed is 4 times"):
        load_model(tmp_path / "m.onnx")


@pytest.mark.slow
@pytest.mark.skipif(
    "PADFREE_TEST_LARGE" not in os.environ, reason="takes 5 GB of memory and a minute; set PADFREE_TEST_LARGE=1"
)
def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    """A word table of 2.2 GB, a hole in its file: it is read, rewritten, written as external data and read again."""
    rows = (1 << 31) // 64 + (1 << 21)
    builder, hidden = one_layer()
    builder.op("Identity", hidden, output="y")
    model = builder.model({"y": ["batch", "sequence", HIDDEN]})
    word = next(tensor for tensor in model.graph.initializer if list(tensor.dims) == [VOCABULARY, HIDDEN])
    with (tmp_path / "m.bin").open("wb") as stream:
        stream.write(word.raw_data)
        stream.truncate(rows * HIDDEN * 4)
    word.ClearField("raw_data")
    word.dims[0] = rows
    word.data_location = TensorProto.EXTERNAL
    word.external_data.append(onnx.StringStringEntryProto(key="location", value="m.bin"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    result = rewrite(tmp_path / "m.onnx", verify=False).model
    save_model(result, tmp_path / "packed.onnx")
    assert (tmp_path / "packed.onnx").stat().st_size < 1 << 20
    (data,) = tmp_path.glob("packed.onnx.*.data")
    assert data.stat().st_size >= rows * HIDDEN * 4
    onnx.checker.check_model(str(tmp_path / "packed.onnx"))


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    os.mkfifo(path)
    with pytest.raises(ModelFileError, match=r"m\.onnx: is a pipe; give the path of a file"):
        load_model(path)
