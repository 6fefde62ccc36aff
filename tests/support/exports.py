# SPDX-License-Identifier: Apache-2.0
"""Exported files of many kinds, and a comparison that does not depend on how padfree reads them.

The truth is the original file, run in onnxruntime on every sequence alone, without any padding.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, inliner, numpy_helper
from padfree.onnx_tools import RewriteResult, rewrite, save_model

# Other exports, written by `make_exports.py FOLDER -o OTHERS`, go through the same checks, as engines too.
FOLDER = Path(os.environ.get("PADFREE_TEST_EXPORTS") or Path(__file__).resolve().parents[1] / "fixtures" / "exports")
DRAWN = "drawn"  # how make_exports.py marks a weight whose values are drawn here
LENGTHS = (9, 1, 4, 13, 6)
TOLERANCE = 1e-4
"""Largest difference relative to a last-axis column's root mean square: float32, two layers, sums in another order."""
FLOOR = 1e-2  # a column's root mean square counts as at least this part of the whole output's


@dataclass(frozen=True)
class Input:
    """An input of the original, and the kind of its values.

    The kind is "ids", "mask", "inverted" (a mask of 1 at padding), "types", "pos", "seg" (a mask of 0, 1, 2), "boxes"
    (four ascending numbers per token) or "embeddings" (`high` floats per token).

    Ids are drawn from [low, high) without those in `excl`; if `last` is given, it ends every sequence, and occurs
    nowhere else.
    """

    name: str
    kind: str
    low: int = 0
    high: int = 64
    excl: tuple[int, ...] = ()
    last: int | None = None


def names() -> list[str]:
    """The names of all cases."""
    return list(json.loads((FOLDER / "cases.json").read_text()))


def save_rewritten(name: str, folder: Path, interface: str = "packed") -> Path:
    """Writes a case's rewritten model into a folder."""
    path = folder / "model.onnx"
    save_model(rewrite(load(name), interface=interface, verify=False).model, path)
    return path


def inputs_of(name: str) -> list[Input]:
    """A case's inputs; none if cases.json does not list any."""
    actual = json.loads((FOLDER / "cases.json").read_text())[name]["inputs"]
    known = ("name", "kind", "low", "high")
    return [
        Input(**{key: item[key] for key in known if key in item}, excl=tuple(item.get("excl", ()))) for item in actual
    ]


def load(name: str, folder: Path = FOLDER) -> ModelProto:
    """A case's model, with weights drawn from a seed that depends on their names."""
    model: ModelProto = ModelProto.FromString(gzip.decompress((folder / f"{name}.onnx.gz").read_bytes()))
    for tensor in model.graph.initializer:
        _draw(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                _draw(attribute.t)
    return model


def _draw(tensor: TensorProto) -> None:
    if not any(item.key == DRAWN for item in tensor.external_data):
        return
    center, deviation = (float(number) for number in tensor.external_data[0].value.split())
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    values = rng.normal(center, deviation, list(tensor.dims))
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    tensor.CopyFrom(numpy_helper.from_array(values.astype(dtype), tensor.name))


def sequences(inputs: list[Input], lengths: tuple[int, ...] = LENGTHS, seed: int = 3) -> list[dict[str, np.ndarray]]:
    """One dict per sequence, of arrays [length], or [length,4] for boxes."""
    rng = np.random.default_rng(seed)

    def draw(item: Input, length: int) -> np.ndarray:
        if item.kind == "mask":
            return np.ones(length, np.int64)
        if item.kind == "inverted":
            return np.zeros(length, np.int64)
        if item.kind == "boxes":
            return np.sort(rng.integers(item.low, item.high, (length, 4)), axis=1)
        if item.kind == "embeddings":
            return rng.standard_normal((length, item.high)).astype(np.float32)
        if item.kind == "pos":
            return np.arange(length)
        if item.kind == "types":
            return rng.integers(0, 2, length)
        if item.kind == "seg":
            return rng.integers(1, 3, length)
        refused = {*item.excl, item.last}
        ids = rng.choice([value for value in range(item.low, item.high) if value not in refused], length)
        return ids if item.last is None else np.append(ids[1:], item.last)

    return [{item.name: draw(item, length) for item in inputs} for length in lengths]


def inline_functions(model: ModelProto) -> ModelProto:
    """The model with bodies in place of the nodes that call functions; onnxruntime takes longer to do the same.

    onnx's inliner forgets attributes that calls leave at their defaults: such models stay as they are.
    """
    if not model.functions or any(function.attribute_proto for function in model.functions):
        return model
    return inliner.inline_local_functions(model)


def session(model: ModelProto | Path) -> ort.InferenceSession:
    """The model in onnxruntime on one thread, without any fusions: every node is computed as the file has it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(model) if isinstance(model, Path) else inline_functions(model).SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def assert_valid(model: ModelProto) -> None:
    """Checks that a model is valid to the letter of ONNX, functions included: TensorRT is stricter than onnxruntime."""
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def metadata_of(result: RewriteResult) -> Mapping[str, Any]:
    actual: Mapping[str, Any] = json.loads(next(e.value for e in result.model.metadata_props if e.key == "padfree"))
    return actual


def _nameless(model: ModelProto) -> ModelProto:
    """The model without names of nodes: onnxruntime refuses equal ones, which mean nothing."""
    copy: ModelProto = ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        node.name = ""
    return copy


def types_of(model: ModelProto) -> dict[str, Any]:
    return {item.name: helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type) for item in model.graph.input}


def truth(
    model: ModelProto,
    requests: list[dict[str, np.ndarray]],
    outputs: list[str],
    running: ort.InferenceSession | None = None,
) -> list[list[np.ndarray]]:
    """The outputs of each sequence alone, in a batch of one; `running` is a session of the model, if there is one."""
    types, running = types_of(model), running or session(_nameless(model))
    return [
        [
            np.asarray(value)
            for value in running.run(outputs, {name: row[None].astype(types[name]) for name, row in item.items()})
        ]
        for item in requests
    ]


def assert_right(
    model: ModelProto,
    inputs: list[Input],
    interface: str,
    *,
    lengths: tuple[int, ...] = LENGTHS,
    left: bool = False,
    **options: Any,
) -> RewriteResult:
    """Rewrites the model and compares every sequence's outputs with those that the original gives for it alone.

    With the padded interface, padded slots hold the first allowed id, or the id of padding if the model has one;
    they are on the right, or on the `left`. `options` are rewrite's.
    """
    result = rewrite(model, interface=interface, **options)
    assert_valid(result.model)
    metadata, requests = metadata_of(result), sequences(inputs, lengths)
    outputs = [item["name"] for item in metadata["outputs"]]
    feeds = packed_feeds(metadata, requests) if interface == "packed" else padded_feeds(model, inputs, requests, left)
    actual = session(result.model).run(outputs, feeds)
    compare(metadata, requests, truth(model, requests, outputs), actual, left)
    return result


def packed_feeds(metadata: Mapping[str, Any], requests: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    lengths = [len(next(iter(item.values()))) for item in requests]
    feeds = {}
    for item in metadata["inputs"]:
        if item["role"] == "tokens":
            values = np.concatenate([sequence[item["name"]] for sequence in requests])
            feeds[item["name"]] = values.astype(np.float32 if item["dtype"] == "float32" else np.int32)
        else:
            size = max(lengths)
            feeds[item["name"]] = np.asarray(lengths if item["role"] == "seq_lens" else [0] * size, np.int32)
    return feeds


def padded_feeds(
    model: ModelProto, inputs: list[Input], original: list[dict[str, np.ndarray]], left: bool
) -> dict[str, Any]:
    longest = max(len(next(iter(item.values()))) for item in original)
    types, feeds = types_of(model), {}
    for item in inputs:
        filler = 1 if item.kind == "inverted" else 0
        if item.kind == "ids":  # the id that the model itself takes for padding, if it says so
            filler = item.excl[0] if item.excl else item.low
        first = next(iter(original))[item.name]
        rows = np.full((len(original), longest, *first.shape[1:]), filler, first.dtype)
        for row, sequence in zip(rows, original, strict=True):
            values = sequence[item.name]
            row[slice(longest - len(values), None) if left else slice(len(values))] = values
        feeds[item.name] = rows.astype(types[item.name])
    return feeds


def compare(
    metadata: Mapping[str, Any],
    requests: list[dict[str, np.ndarray]],
    wanted: list[list[np.ndarray]],
    actual: list[np.ndarray],
    left: bool,
) -> None:
    lengths = [len(next(iter(item.values()))) for item in requests]
    starts, longest = np.cumsum([0, *lengths]), max(lengths)
    for location, output in enumerate(metadata["outputs"]):
        value, pairs = actual[location], []
        for row, length in enumerate(lengths):
            expected = wanted[row][location]
            if output["layout"] == "packed":
                got = value[starts[row] : starts[row] + length][None]
            elif output["layout"] == "constant":
                got = value
            else:
                got = value[row : row + 1]
                for axis, size in enumerate(expected.shape):
                    if output["layout"] != "per_sequence" and axis and got.shape[axis] == longest and size == length:
                        kept = slice(longest - length, None) if left else slice(length)
                        got = got[(slice(None),) * axis + (kept,)]
            assert got.shape == expected.shape, (output, got.shape, expected.shape)
            pairs.append((got.astype(np.float64), expected.astype(np.float64)))
        assert_close(str(output["name"]), pairs)


def assert_close(
    name: str, pairs: list[tuple[np.ndarray, np.ndarray]], tolerance: float = TOLERANCE, floor: float = FLOOR
) -> float:
    """Compares results with what is wanted, pair by pair; returns the largest error.

    Errors are relative to a last-axis column's root mean square, which counts as at least `floor` of the whole
    output's. Values that are not finite, or are above 1e30, have to be equal.
    """
    width = pairs[0][1].shape[-1] if pairs[0][1].ndim and len({b.shape[-1] for _, b in pairs}) == 1 else 1
    a, b = (np.concatenate([pair[side].reshape(-1, width) for pair in pairs]) for side in (0, 1))
    odd = ~np.isfinite(b) | (np.abs(b) > 1e30)
    np.testing.assert_array_equal(a[odd], b[odd], err_msg=f"{name}: values that are no ordinary numbers")
    ordinary = np.where(odd, 0, b)
    counts = np.maximum((~odd).sum(0), 1)
    column = np.sqrt((ordinary**2).sum(0) / counts)
    scale = np.maximum(column, floor * np.sqrt((ordinary**2).sum() / max((~odd).sum(), 1))) + 1e-30
    error = np.where(odd, 0, np.abs(a - b) / scale)
    worst = float(error.max(initial=0))
    assert worst <= tolerance, f"{name}: {worst:.2g} of a column's root mean square"
    return worst
