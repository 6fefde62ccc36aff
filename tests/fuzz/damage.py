# SPDX-License-Identifier: Apache-2.0
"""Damages bytes, models and JSON values, drawn from a generator: what broken disks and hostile people make of files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

NUMBERS = (0, 1, -1, 2, 7, 127, 255, 65535, 2**31 - 1, 2**31, 2**32, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
WORDS = (
    "",
    "x",
    "input_ids",
    "../../up",
    "/etc/passwd",
    "a b;$(touch hostile)",
    "\x1b[31mred",
    "\u202e",
    "é" * 200,
    "\0",
    "A" * 9000,
)
ODD: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": 1}, 0.5, float("nan"), float("inf"), -1e308, *NUMBERS, *WORDS)
MOST_CHANGES = 4


def damaged_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """The data with parts flipped, cut out, cut off, doubled or overwritten."""
    actual = bytearray(data)
    for _ in range(int(rng.integers(1, MOST_CHANGES + 1))):
        if not actual:
            break
        at = int(rng.integers(len(actual)))
        length = int(rng.integers(1, 1 + min(64, len(actual) - at)))
        kind = int(rng.integers(6))
        if kind == 0:
            actual[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del actual[at : at + length]
        elif kind == 2:
            del actual[at:]
        elif kind == 3:
            actual[at:at] = actual[at : at + length]
        elif kind == 4:
            actual[at : at + length] = rng.bytes(length)
        else:
            actual[at : at + length] = bytes([int(rng.choice([0, 0x7F, 0x80, 0xFF]))]) * length
    return bytes(actual)


def _pick(items: Any, rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))]


def _number(rng: np.random.Generator) -> int:
    return int(_pick(NUMBERS, rng))


def _size(model: ModelProto, rng: np.random.Generator) -> None:
    tensor = _pick(model.graph.initializer, rng)
    if tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = _number(rng)
    else:
        tensor.dims.append(_number(rng))


def _type(model: ModelProto, rng: np.random.Generator) -> None:
    _pick(model.graph.initializer, rng).data_type = int(rng.integers(0, 30))


def _data(model: ModelProto, rng: np.random.Generator) -> None:
    tensor: TensorProto = _pick(model.graph.initializer, rng)
    tensor.raw_data = damaged_bytes(tensor.raw_data or b"\0\0\0\0", rng)


def _outside(model: ModelProto, rng: np.random.Generator) -> None:
    tensor: TensorProto = _pick(model.graph.initializer, rng)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key in ("location", "offset", "length"):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(_pick(WORDS if key == "location" else NUMBERS, rng)).replace("\0", "0")


def _operator(model: ModelProto, rng: np.random.Generator) -> None:
    node = _pick(model.graph.node, rng)
    node.op_type = _pick(model.graph.node, rng).op_type if rng.random() < 0.7 else str(_pick(WORDS, rng))


def _wiring(model: ModelProto, rng: np.random.Generator) -> None:
    node, other = _pick(model.graph.node, rng), _pick(model.graph.node, rng)
    kind = int(rng.integers(5))
    if kind == 0 and node.input and other.output:
        node.input[int(rng.integers(len(node.input)))] = other.output[0]
    elif kind == 1 and node.input:
        del node.input[int(rng.integers(len(node.input)))]
    elif kind == 2 and node.input:
        node.input.append(node.input[0])
    elif kind == 3 and node.output and other.output:
        node.output[0] = other.output[0]
    elif node.input:
        node.input[0] = str(_pick(WORDS, rng))


def _lost_node(model: ModelProto, rng: np.random.Generator) -> None:
    del model.graph.node[int(rng.integers(len(model.graph.node)))]


def _order(model: ModelProto, rng: np.random.Generator) -> None:
    nodes = [model.graph.node[int(index)] for index in rng.permutation(len(model.graph.node))]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _attribute(model: ModelProto, rng: np.random.Generator) -> None:
    with_some = [node for node in model.graph.node if node.attribute]
    if not with_some:
        return
    attribute: AttributeProto = _pick(_pick(with_some, rng).attribute, rng)
    kind = int(rng.integers(4))
    if kind == 0:
        attribute.i = _number(rng)
    elif kind == 1 and attribute.ints:
        attribute.ints[int(rng.integers(len(attribute.ints)))] = _number(rng)
    elif kind == 2:
        attribute.type = int(rng.integers(0, 15))
    else:
        attribute.name = str(_pick(WORDS, rng))


def _value(model: ModelProto, rng: np.random.Generator) -> None:
    graph: GraphProto = model.graph
    value = _pick([*graph.input, *graph.output, *graph.value_info], rng)
    kind = int(rng.integers(4))
    if kind == 0:
        value.type.tensor_type.elem_type = int(rng.integers(0, 30))
    elif kind == 1 and value.type.tensor_type.shape.dim:
        _pick(value.type.tensor_type.shape.dim, rng).dim_value = _number(rng)
    elif kind == 2 and value.type.tensor_type.shape.dim:
        del value.type.tensor_type.shape.dim[0]
    else:
        value.name = str(_pick(WORDS, rng))


def _version(model: ModelProto, rng: np.random.Generator) -> None:
    if rng.random() < 0.5:
        _pick(model.opset_import, rng).version = _number(rng)
    else:
        model.ir_version = _number(rng)


def _metadata(model: ModelProto, rng: np.random.Generator) -> None:
    for item in model.metadata_props:
        with contextlib.suppress(json.JSONDecodeError):  # the metadata was damaged before
            item.value = json.dumps(damaged_json(json.loads(item.value), rng))


CHANGES: tuple[Callable[[ModelProto, np.random.Generator], None], ...] = (
    _size, _type, _data, _outside, _operator, _wiring, _lost_node, _order, _attribute, _value, _version, _metadata,
)  # fmt: skip


def damaged_model(data: bytes, rng: np.random.Generator) -> bytes:
    """A file in which either some parts of the model are wrong, or some bytes."""
    if rng.random() < 0.3:
        return damaged_bytes(data, rng)
    model = ModelProto.FromString(data)
    for _ in range(int(rng.integers(1, MOST_CHANGES + 1))):
        with contextlib.suppress(ValueError, TypeError):  # protobuf rejects some values itself
            _pick(CHANGES, rng)(model, rng)
    return model.SerializeToString()


def damaged_json(value: Any, rng: np.random.Generator) -> Any:
    """The value with some part of it replaced, left out, renamed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = _pick(list(value), rng)
        kind = int(rng.integers(6))
        if kind == 0:
            return {name: item for name, item in value.items() if name != key}
        if kind == 1:
            return {str(_pick(WORDS, rng)) if name == key else name: item for name, item in value.items()}
        return {name: damaged_json(item, rng) if name == key else item for name, item in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = int(rng.integers(len(value)))
        kind = int(rng.integers(5))
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return [*value, value[at]]
        return [damaged_json(item, rng) if index == at else item for index, item in enumerate(value)]
    return _pick(ODD, rng)


def damaged_document(data: bytes, rng: np.random.Generator, *, as_bytes: float = 0.0) -> bytes:
    """A JSON document with one to three values changed; with probability `as_bytes`, damaged as bytes instead."""
    if as_bytes and rng.random() < as_bytes:
        return damaged_bytes(data, rng)
    value = json.loads(data)
    for _ in range(int(rng.integers(1, 4))):
        value = damaged_json(value, rng)
    return json.dumps(value).encode("utf-8", "surrogatepass")
