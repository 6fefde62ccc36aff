# SPDX-License-Identifier: Apache-2.0
"""Weights that stay outside of their messages: results are the same as with the weights inside."""

from __future__ import annotations

import errno
import gc
import importlib
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import ModelFileError, rewrite, save_model, synthetic, without_functions
from padfree.onnx_tools.files.graph_io import export_model, import_graph
from padfree.onnx_tools.files.metadata import read_metadata, write_metadata
from padfree.onnx_tools.files.model import Model, bytes_in_pieces
from padfree.onnx_tools.files.model_file import open_model
from padfree.onnx_tools.files.ort_session import open_session
from padfree.onnx_tools.files.weights import LARGE_BYTES, HeldValues, Storage, Weights, array_of
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.precision.rounded_weights import round_to
from padfree.onnx_tools.rewrite import finish, rewrite_model

rewrite_module = importlib.import_module("padfree.onnx_tools.rewrite")  # the package has a function with that name
EXPORTS = sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("*.onnx"))
MODEL = synthetic.bert_model(2, 128, 4, 512, 300, 64)


def whole(model: Model) -> ModelProto:
    """The model with its weights inside."""
    size, pieces = bytes_in_pieces(model)
    content = b"".join(pieces)
    assert len(content) == size
    result = onnx.load_model_from_string(content)
    assert result == model.whole()
    return result


def names_in_memory(model: Model) -> list[str]:
    return [tensor.name for tensor in model.proto.graph.initializer if tensor in model.weights]


def test_weights_are_let_go_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path)
    model = open_model(path)
    names, left = names_in_memory(model), list[int]()
    size, pieces = bytes_in_pieces(model, consume=True)
    content = bytearray()
    for piece in pieces:
        content += piece
        left.append(len(names_in_memory(model)))
    assert len(content) == size
    assert onnx.load_model_from_string(bytes(content)) == MODEL
    assert set(left) == set(range(len(names) + 1))


def as_half(model: ModelProto, precision: str) -> ModelProto:
    """The model as a file with that precision holds it."""
    result = ModelProto()
    result.CopyFrom(model)
    kind = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[precision]
    for tensor in result.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            name = tensor.name
            tensor.CopyFrom(round_to(numpy_helper.to_array(tensor), precision))
            tensor.name = name
    for value in (*result.graph.output, *result.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    return result


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_file_is_mapped(tmp_path: Path, *, external: bool) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path, external_data_bytes=0 if external else 1 << 40)
    model = open_model(path)
    large = {tensor.name for tensor in MODEL.graph.initializer if len(tensor.raw_data) >= LARGE_BYTES}
    assert len(large) > 8
    assert set(names_in_memory(model)) == large
    assert not any(tensor.raw_data for tensor in model.proto.graph.initializer if tensor.name in large)
    assert whole(model) == MODEL
    path.unlink()
    assert whole(model) == MODEL  # the file stays in existence while it is mapped


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_file_that_is_written_to_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, external: bool
) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path, external_data_bytes=0 if external else 1 << 40)
    (file,) = tmp_path.glob("*.data") if external else [path]
    weights = open_model(path).weights
    weights.check_files()
    with file.open("r+b") as stream:
        first = stream.read(1)
        stream.seek(0)
        stream.write(first)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**6))  # file systems' clocks are coarse
    with pytest.raises(ModelFileError, match=rf"{file.name}' was written to while its weights were read"):
        weights.check_files()

    fine = rewrite_module._export
    monkeypatch.setattr(rewrite_module, "_export", lambda *given: (os.utime(file), fine(*given))[1])
    with pytest.raises(ModelFileError, match="run this again"):
        rewrite(path, verify=False)
    file.replace(tmp_path / "old")
    save_model(MODEL, path, external_data_bytes=0 if external else 1 << 40)
    weights.check_files()  # another file: the mapped data has not changed


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_file_that_cannot_be_mapped_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, external: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    path = tmp_path / "model.onnx"
    save_model(MODEL, path, external_data_bytes=0 if external else 1 << 40)
    monkeypatch.setattr(mmap, "mmap", refuse)
    assert open_model(path).proto == MODEL
    assert rewrite(path, precision="fp16").model == rewrite(MODEL, precision="fp16").model


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[200, 200], data_location=TensorProto.EXTERNAL)
    graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("w", 1, [200, 200])], [tensor])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    for storage in Storage:
        with pytest.raises(ModelFileError, match=r"tensor 'w' of .* has its data in ''"):
            open_model(path, storage)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("stored", ["fp32", "fp16"])
def test_what_is_rewritten_is_the_same(tmp_path: Path, precision: str, stored: str) -> None:
    source = MODEL if stored == "fp32" else as_half(MODEL, stored)
    path = tmp_path / "model.onnx"
    save_model(source, path)
    options: dict[str, Any] = {"interface": "packed", "precision": precision, "strict": False, "verify": False}
    wanted = rewrite(source, **options).model
    actual = rewrite_model(open_model(path), RewriteOptions.of_keywords(**options)).model
    assert len(names_in_memory(actual)) > 4
    assert finish(actual, precision) == wanted
    if precision != "fp32":
        assert whole(with_linear(actual)) == with_linear(Model(wanted)).whole()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_verified_models_are_the_same(tmp_path: Path, precision: str) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path)
    actual, wanted = rewrite(path, precision=precision).model, rewrite(MODEL, precision=precision, verify=False).model
    metadata = read_metadata(actual, ValueError)
    assert metadata.pop("verification")["errors"]
    write_metadata(actual, metadata)
    assert actual == wanted


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_exports_are_rewritten_alike_whatever_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports by dynamo are rewritten for the packed interface, those by TorchScript for the padded one."""
    interface = "packed" if path.stem.endswith("_dynamo") else "padded"
    options: dict[str, Any] = {"interface": interface, "precision": "fp16", "strict": False, "verify": True}
    wanted = rewrite(path, **options).model
    for module in ("files.graph_io", "files.external_data", "files.model", "files.wire"):
        monkeypatch.setattr(f"padfree.onnx_tools.{module}.LARGE_BYTES", 1 << 10)
    actual = rewrite_model(open_model(path), RewriteOptions.of_keywords(**options)).model
    assert names_in_memory(actual)
    assert whole(actual) == without_functions(wanted)
    assert finish(actual, "fp16") == wanted


@pytest.mark.parametrize("optimize", [False, True])
def test_sessions_share_weights(tmp_path: Path, *, optimize: bool) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path)
    model = open_model(path)
    model.weights.align()
    aligned = {tensor.name: model.array(tensor) for tensor in model.proto.graph.initializer}
    assert all(array.flags.aligned for array in aligned.values())
    feeds = {
        item.name: np.ones((2, 5), helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
        for item in model.proto.graph.input
    }
    wanted = open_session(Model(MODEL), optimize=optimize).run(None, feeds)
    session = open_session(model, optimize=optimize)
    del model, aligned  # the session keeps what it needs
    gc.collect()
    for a, b in zip(wanted, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_sessions_copy_no_weights() -> None:
    """64 MiB of weights: a session that copied them, even briefly, would raise the process's peak."""
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session

def made(size):
    x, y = (helper.make_tensor_value_info(name, 1, [1, size]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y])
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    model.weights.hold_array(model.proto.graph.initializer.add(name="w"), np.eye(size, dtype=np.float32))
    return model

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
open_session(made(512)).run(None, {"x": np.zeros((1, 512), np.float32)})  # what onnxruntime takes once
model, x = made(4096), np.arange(4096, dtype=np.float32)[None]
before = peak()
for optimize in (False, True):
    (y,) = open_session(model, optimize=optimize).run(None, {"x": x})
    assert (y == x).all()
print(peak() - before)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 32 << 20


def test_large_data_is_taken_out() -> None:
    model = Model.of(MODEL)
    assert names_in_memory(model)
    assert whole(model) == MODEL
    assert MODEL.graph.initializer[0].raw_data


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64])
def test_values_of_all_types_are_those_of_the_message(kind: int) -> None:
    tensor = helper.make_tensor("w", kind, [3, 5], [float(i) for i in range(15)])
    tensor = numpy_helper.from_array(numpy_helper.to_array(tensor), "w") if kind != TensorProto.BFLOAT16 else tensor
    if not tensor.raw_data:
        tensor = round_to(np.arange(15, dtype=np.float32).reshape(3, 5), "bf16")
        tensor.name = "w"
    values, content = numpy_helper.to_array(tensor), tensor.raw_data
    weights = Weights()
    weights.hold(tensor, memoryview(b"x" + content)[1:])  # not aligned
    data = weights.data_of(tensor)
    assert data is not None
    np.testing.assert_array_equal(array_of(tensor, data), values)
    np.testing.assert_array_equal(HeldValues(tensor, data).load(), values)
    assert HeldValues(tensor, data).tensor.raw_data == content


def test_a_graph_gives_back_what_it_was_made_of() -> None:
    model = Model.of(MODEL)
    graph = import_graph(model)
    constants = [tensor for tensor in graph.tensors().values() if isinstance(tensor, gs.Constant)]
    large = [tensor for tensor in constants if isinstance(tensor._values, HeldValues)]
    assert {tensor.name for tensor in large} == set(names_in_memory(model))
    large[0].values  # noqa: B018 - an array from here on
    copies = [tensor for tensor in graph.copy().tensors().values() if isinstance(tensor, gs.Constant)]
    arrays = {tensor.name: np.asarray(tensor.values) for tensor in copies}
    for tensor in whole(export_model(graph, model)).graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), arrays[tensor.name])


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float16])
@pytest.mark.parametrize("outside", [False, True])
def test_large_constants_of_copied_graphs_keep_their_type(dtype: type, *, outside: bool) -> None:
    values = np.arange(1 << 14).reshape(1, -1).astype(dtype)  # positions, in models for long texts
    info = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), values.shape)
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    message = helper.make_model(helper.make_graph(nodes, "g", [], [info], [numpy_helper.from_array(values, "w")]))
    model = Model.of(message) if outside else Model(message)
    (tensor,) = whole(export_model(import_graph(model).copy(), model)).graph.initializer
    actual = numpy_helper.to_array(tensor)
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual, values)
