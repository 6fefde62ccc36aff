# SPDX-License-Identifier: Apache-2.0
"""Model files: what is broken is named, and a file is written whole or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools import ModelFileError, load_model, save_model


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


def test_external_data_round_trip_and_replacement(tmp_path: Path) -> None:
    model = small_model()
    before = model.SerializeToString()
    path = tmp_path / "m[1].onnx"
    save_model(model, path, external_data_bytes=10_000)
    assert model.SerializeToString() == before
    (data,) = [name for name in names(tmp_path) if name.endswith(".data")]
    assert path.stat().st_size < 2_000
    assert load_model(path) == model
    onnx.checker.check_model(str(path))

    other = small_model(seed=5)
    save_model(other, path, external_data_bytes=10_000)
    assert load_model(path) == other
    assert len(names(tmp_path)) == 2
    assert data not in names(tmp_path)
    save_model(other, path)
    assert names(tmp_path) == ["m[1].onnx"]


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


def test_unwritable_places_are_named(tmp_path: Path) -> None:
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


def external_model(location: str, **entries: int) -> onnx.ModelProto:
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
    ],
)
def test_bad_external_data_is_refused(tmp_path: Path, location: str, entries: dict[str, int], words: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(bytes(6400))
    (folder / "short.bin").write_bytes(bytes(100))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "m.onnx").write_bytes(external_model(location, **entries).SerializeToString())
    with pytest.raises(ModelFileError, match=words):
        load_model(folder / "m.onnx")
