# SPDX-License-Identifier: Apache-2.0
"""Weights that stay outside of their messages: whatever is made of a model is made of it with them inside too."""

from __future__ import annotations

import errno
import gc
import importlib
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import ModelFileError, load_model, rewrite, save_model, synthetic
from padfree.onnx_tools.files.graph_io import export_model, import_graph
from padfree.onnx_tools.files.model_file import bytes_in_pieces, without_large_data
from padfree.onnx_tools.files.ort_session import open_session
from padfree.onnx_tools.files.weights import LARGE_BYTES, HeldValues, Weights, array_of
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.precision.precision import round_to

rewrite_module = importlib.import_module("padfree.onnx_tools.rewrite")  # the package has a function of that name
EXPORTS = sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("*.onnx"))
MODEL = synthetic.bert_model(2, 128, 4, 512, 300, 64)


def whole(model: ModelProto, weights: Weights) -> ModelProto:
    """The model with its weights inside."""
    size, pieces = bytes_in_pieces(model, weights)
    content = b"".join(pieces)
    assert len(content) == size
    return onnx.load_model_from_string(content)


def held(model: ModelProto, weights: Weights) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer if weights.data_of(tensor) is not None]


def as_half(model: ModelProto, precision: str) -> ModelProto:
    """The model as a file of that precision has it."""
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
    weights = Weights()
    model = load_model(path, weights)
    large = {tensor.name for tensor in MODEL.graph.initializer if len(tensor.raw_data) >= LARGE_BYTES}
    assert len(large) > 8
    assert set(held(model, weights)) == large
    assert not any(tensor.raw_data for tensor in model.graph.initializer if tensor.name in large)
    assert whole(model, weights) == MODEL
    path.unlink()
    assert whole(model, weights) == MODEL  # the file lives on while it is mapped


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_file_that_is_written_to_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, external: bool
) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path, external_data_bytes=0 if external else 1 << 40)
    (file,) = tmp_path.glob("*.data") if external else [path]
    weights = Weights()
    load_model(path, weights)
    weights.check_files()
    with file.open("r+b") as stream:
        first = stream.read(1)
        stream.seek(0)
        stream.write(first)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 10**6))  # clocks of file systems are coarse
    with pytest.raises(ModelFileError, match=rf"{file.name}' was written to while its weights were read"):
        weights.check_files()

    fine = rewrite_module._exported
    monkeypatch.setattr(rewrite_module, "_exported", lambda *given: (os.utime(file), fine(*given))[1])
    with pytest.raises(ModelFileError, match="run this again"):
        rewrite(path, verify=False)
    file.replace(tmp_path / "old")
    save_model(MODEL, path, external_data_bytes=0 if external else 1 << 40)
    weights.check_files()  # another file: what is mapped has not changed


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_a_file_that_cannot_be_mapped_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, external: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    path = tmp_path / "model.onnx"
    save_model(MODEL, path, external_data_bytes=0 if external else 1 << 40)
    monkeypatch.setattr(mmap, "mmap", refuse)
    weights = Weights()
    assert load_model(path, weights) == MODEL
    assert rewrite(path, precision="fp16").model == rewrite(MODEL, precision="fp16").model


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[200, 200], data_location=TensorProto.EXTERNAL)
    graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("w", 1, [200, 200])], [tensor])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    for weights in (None, Weights()):
        with pytest.raises(ModelFileError, match=r"tensor 'w' of .* has its data in ''"):
            load_model(path, weights)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("stored", ["fp32", "fp16"])
def test_what_is_rewritten_is_the_same(tmp_path: Path, precision: str, stored: str) -> None:
    source = MODEL if stored == "fp32" else as_half(MODEL, stored)
    path = tmp_path / "model.onnx"
    save_model(source, path)
    options: dict[str, Any] = {"precision": precision, "verify": False}
    wanted = rewrite(source, **options).model
    weights = Weights()
    found = rewrite(load_model(path, weights), **options, weights=weights).model
    assert len(held(found, weights)) > 4
    assert whole(found, weights) == wanted
    if precision != "fp32":
        assert whole(with_linear(found, weights=weights), weights) == with_linear(wanted)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_verified_models_are_the_same(tmp_path: Path, precision: str) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path)
    assert rewrite(path, precision=precision).model == rewrite(MODEL, precision=precision, verify=False).model


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_exports_are_rewritten_alike_whatever_is_held(
    path: Path, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = rewrite(path, interface=interface, precision="fp16").model
    for module in ("files.graph_io", "files.external_data", "files.model_file", "precision.precision", "files.wire"):
        monkeypatch.setattr(f"padfree.onnx_tools.{module}.LARGE_BYTES", 1 << 10)
    weights = Weights()
    found = rewrite(path, interface=interface, precision="fp16", weights=weights).model
    assert held(found, weights)
    assert whole(found, weights) == wanted


@pytest.mark.parametrize("optimize", [False, True])
def test_sessions_share_weights(tmp_path: Path, *, optimize: bool) -> None:
    path = tmp_path / "model.onnx"
    save_model(MODEL, path)
    weights = Weights()
    model = load_model(path, weights)
    weights.align()
    aligned = {name: weights.array(tensor) for tensor in model.graph.initializer if (name := tensor.name)}
    assert all(array.flags.aligned for array in aligned.values())
    feeds = {
        item.name: np.ones((2, 5), helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
        for item in model.graph.input
    }
    wanted = open_session(MODEL, optimize=optimize).run(None, feeds)
    session = open_session(model, weights, optimize=optimize)
    del weights, aligned  # the session keeps what it needs
    gc.collect()
    for a, b in zip(wanted, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_large_data_is_taken_out() -> None:
    weights = Weights()
    model = without_large_data(MODEL, weights)
    assert held(model, weights)
    assert whole(model, weights) == MODEL
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
    weights = Weights()
    model = without_large_data(MODEL, weights)
    graph = import_graph(model, weights)
    constants = [tensor for tensor in graph.tensors().values() if isinstance(tensor, gs.Constant)]
    large = [tensor for tensor in constants if isinstance(tensor._values, HeldValues)]
    assert {tensor.name for tensor in large} == set(held(model, weights))
    large[0].values  # noqa: B018 - an array from here on
    copies = [tensor for tensor in graph.copy().tensors().values() if isinstance(tensor, gs.Constant)]
    arrays = {tensor.name: np.asarray(tensor.values) for tensor in copies}
    out = Weights()
    made = whole(export_model(graph, out), out)
    plain = export_model(graph)
    for tensor in (*made.graph.initializer, *plain.graph.initializer):
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), arrays[tensor.name])


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float16])
@pytest.mark.parametrize("holds", [False, True])
def test_large_constants_of_copied_graphs_keep_their_type(dtype: type, *, holds: bool) -> None:
    values = np.arange(1 << 14).reshape(1, -1).astype(dtype)  # positions, of models for long texts
    info = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), values.shape)
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [info], [numpy_helper.from_array(values, "w")]))
    weights = Weights() if holds else None
    made = export_model(import_graph(model).copy(), weights)
    (tensor,) = (made if weights is None else whole(made, weights)).graph.initializer
    found = numpy_helper.to_array(tensor)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)
