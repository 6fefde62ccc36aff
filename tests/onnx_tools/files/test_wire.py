# SPDX-License-Identifier: Apache-2.0
"""Models read and written weight by weight equal those that protobuf reads and writes."""

from __future__ import annotations

import io
import random
from itertools import pairwise

import onnx
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto
from padfree.onnx_tools import synthetic
from padfree.onnx_tools.files import wire
from padfree.onnx_tools.files.model import Model, bytes_in_pieces
from padfree.onnx_tools.files.weights import Weights
from padfree.onnx_tools.files.wire import message_head, read_model

MODEL = synthetic.bert_model(1, 8, 2, 16, 50, 20)
GRAPH = ModelProto.GRAPH_FIELD_NUMBER


def read(content: bytes) -> ModelProto:
    return read_model(io.BytesIO(content), len(content))


def test_what_is_read_is_the_model() -> None:
    content = MODEL.SerializeToString()
    assert read(content) == MODEL
    assert read(b"") == ModelProto()


def test_parts_of_a_graph_are_joined() -> None:
    """Protobuf allows a message to be split into parts."""
    parts = [
        onnx.GraphProto(name="first", initializer=[onnx.TensorProto(name="a", dims=[2])]),
        onnx.GraphProto(name="second", initializer=[onnx.TensorProto(name="b")], doc_string="text"),
        onnx.GraphProto(),
    ]
    content = b"".join(message_head(GRAPH, part.ByteSize()) + part.SerializeToString() for part in parts)
    assert read(content) == ModelProto.FromString(content)
    assert [item.name for item in read(content).graph.initializer] == ["a", "b"]
    assert read(message_head(GRAPH, 0)).HasField("graph")


def test_only_the_bytes_that_belong_to_it_are_read() -> None:
    content = MODEL.SerializeToString()
    stream = io.BytesIO(content + b"behind it")
    assert read_model(stream, len(content)) == MODEL
    assert stream.read() == b"behind it"


def test_damaged_bytes_are_refused_or_read_as_protobuf_reads_them() -> None:
    content, rng = MODEL.SerializeToString(), random.Random(0)
    read_anyway = 0
    for _ in range(3000):
        damaged = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 5))):
            damaged[rng.choice((rng.randrange(len(content)), rng.randrange(200)))] = rng.randrange(256)
        try:
            model = read(bytes(damaged))
        except DecodeError:
            continue
        read_anyway += 1
        assert model.SerializeToString(deterministic=True) == ModelProto.FromString(bytes(damaged)).SerializeToString(
            deterministic=True
        )
    assert 0 < read_anyway < 3000


@pytest.mark.slow
def test_damaged_files_whose_weights_stay_in_them_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGE_BYTES", 16)
    content, rng = MODEL.SerializeToString(), random.Random(1)
    held = 0
    for _ in range(3000):
        damaged = bytearray(content)
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            damaged[rng.choice((rng.randrange(len(content)), rng.randrange(200)))] = rng.randrange(256)
        file, weights = bytes(damaged), Weights()
        try:
            model = read_model(io.BytesIO(file), len(file), wire.FileMap(memoryview(file), weights))
        except DecodeError:
            with pytest.raises(DecodeError):
                read(file)
            continue
        for actual, wanted in zip(model.graph.initializer, read(file).graph.initializer, strict=True):
            data = weights.data_of(actual)
            if data is None:
                assert actual.SerializeToString(deterministic=True) == wanted.SerializeToString(deterministic=True)
            else:
                held += 1
                assert (bytes(data), actual.dims, actual.data_type) == (wanted.raw_data, wanted.dims, wanted.data_type)
    assert held > 3000


@pytest.mark.parametrize(
    "content",
    [
        message_head(GRAPH, 5) + b"abc",
        message_head(GRAPH, 2) + message_head(onnx.GraphProto.INITIALIZER_FIELD_NUMBER, 1 << 60),
        b"\x80" * 11,
        b"\x0b",
        message_head(GRAPH, 4) + message_head(onnx.GraphProto.INITIALIZER_FIELD_NUMBER, 2) + b"\xff\xff",
    ],
    ids=["missing bytes", "longer than its message", "endless number", "a group", "no tensor"],
)
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(DecodeError):
        read(content)


def test_pieces_are_the_model() -> None:
    size, pieces = bytes_in_pieces(Model(MODEL))
    parts = list(pieces)
    content = b"".join(parts)
    assert len(content) == size
    assert ModelProto.FromString(content) == MODEL
    onnx.checker.check_model(content)  # protobuf's C++ code reads it
    largest = max(len(item.SerializeToString()) for item in MODEL.graph.initializer)
    assert max(map(len, parts[1:])) == largest
    assert len(parts) == 1 + 2 * len(MODEL.graph.initializer)


def test_numbers_of_any_length() -> None:
    numbers = [0, 1, 127, 128, 16383, 16384, 1 << 31, (1 << 63) - 1]
    heads = [message_head(1, number) for number in numbers]
    assert all(len(a) <= len(b) for a, b in pairwise(heads))
    assert [len(head) for head in heads] == [2, 2, 2, 3, 3, 4, 6, 10]
