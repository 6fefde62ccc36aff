# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings however written, and what is not a rotation by position * frequency; fewer heads of K and V."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from padfree.onnx_tools import RewriteResult, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import TOKENS, with_output

from .attention_forms import FLOAT, HEADS, MANY, SIZE, PositionedBuilder, Rotate, attributes, rotary_layer

FREQUENCIES = np.asarray([1.0, 0.25], np.float32)


def frequencies_of(result: RewriteResult) -> list[np.ndarray]:
    constants = {item.name: item for item in result.model.graph.initializer}
    nodes = [node for node in result.model.graph.node if node.op_type == "PadfreeRotary"]
    return [np.asarray(numpy_helper.to_array(constants[node.input[2]]))[0] for node in nodes]


def _angles(b: PositionedBuilder, frequencies: np.ndarray = FREQUENCIES) -> str:
    """[1,1,S,pairs]."""
    return b.op("Mul", b.op("Cast", b.steps(0, 1, 3), to=FLOAT), b.constant(frequencies))


def _half(b: PositionedBuilder, x: str, factor: float = 1.0, function: str = "Cos") -> str:
    """As Llama writes it."""
    both = b.op("Concat", *[_angles(b)] * 2, axis=-1)
    cosine, sine = (b.op("Mul", b.op(op, both), b.constant(factor)) for op in (function, "Sin"))
    other = b.op("Concat", b.op("Neg", b.columns(x, 2, MANY)), b.columns(x, 0, 2), axis=-1)
    return b.op("Add", b.op("Mul", x, cosine), b.op("Mul", other, sine))


def _tables(b: PositionedBuilder, x: str) -> str:
    """Rows of constant tables, as in exports with precomputed angles."""
    angles = np.arange(32, dtype=np.float32)[:, None] * np.tile(FREQUENCIES, 2)
    length = b.op("Shape", "input_ids", start=1)
    cosine, sine = (
        b.op("Slice", b.constant(values), b.axes(0), length, b.axes(0)) for values in (np.cos(angles), np.sin(angles))
    )
    other = b.op("Concat", b.op("Neg", b.columns(x, 2, MANY)), b.columns(x, 0, 2), axis=-1)
    return b.op("Add", b.op("Mul", x, cosine), b.op("Mul", other, sine))


def _interleave(b: PositionedBuilder, x: str) -> str:
    """As RoFormer writes it: even elements paired with odd ones."""
    both = b.op("Reshape", b.op("Concat", *[b.op("Unsqueeze", _angles(b), b.axes(4))] * 2, axis=4), b.axes(1, 1, -1, 4))
    even, odd = b.columns(x, 0, MANY, 2), b.columns(x, 1, MANY, 2)
    pairs = [b.op("Unsqueeze", item, b.axes(4)) for item in (b.op("Neg", odd), even)]
    other = b.op("Reshape", b.op("Concat", *pairs, axis=4), b.axes(0, 0, 0, SIZE))
    return b.op("Add", b.op("Mul", x, b.op("Cos", both)), b.op("Mul", other, b.op("Sin", both)))


def _products_apart(b: PositionedBuilder, x: str) -> str:
    """As onnxruntime's operator, written out: each half separately."""
    cosine, sine = b.op("Cos", _angles(b)), b.op("Sin", _angles(b))
    one, two = b.columns(x, 0, 2), b.columns(x, 2, 4)
    first = b.op("Sub", b.op("Mul", one, cosine), b.op("Mul", two, sine))
    second = b.op("Add", b.op("Mul", two, cosine), b.op("Mul", one, sine))
    return b.op("Concat", first, second, axis=3)


def _partial(b: PositionedBuilder, x: str) -> str:
    """Rotates the first two of four elements."""
    angles = _angles(b, FREQUENCIES[:1])
    cosine, sine = b.op("Cos", angles), b.op("Sin", angles)
    one, two = b.columns(x, 0, 1), b.columns(x, 1, 2)
    first = b.op("Sub", b.op("Mul", one, cosine), b.op("Mul", two, sine))
    second = b.op("Add", b.op("Mul", two, cosine), b.op("Mul", one, sine))
    return b.op("Concat", first, second, b.columns(x, 2, 4), axis=3)


def _cross_pairs(b: PositionedBuilder, x: str) -> str:
    """Pairs from outside in, which PadfreeRotary does not know: the columns of Q and K are permuted."""
    cosine, sine = b.op("Cos", _angles(b)), b.op("Sin", _angles(b))
    one, two = b.columns(x, 0, 2), b.columns(x, 3, 1, -1)
    first = b.op("Sub", b.op("Mul", one, cosine), b.op("Mul", two, sine))
    second = b.op("Add", b.op("Mul", two, cosine), b.op("Mul", one, sine))
    return b.op("Concat", first, b.columns(second, 1, -MANY, -1), axis=3)


FORMS: dict[str, tuple[Rotate, str, list[float]]] = {
    "half": (_half, "half", [1.0, 0.25]),
    "tables": (_tables, "half", [1.0, 0.25]),
    "interleaved": (_interleave, "interleaved", [1.0, 0.25]),
    "products apart": (_products_apart, "half", [1.0, 0.25]),
    "partial": (_partial, "interleaved", [1.0, 0.0]),
    "crossed": (_cross_pairs, "half", [1.0, 0.25]),
    "factor": (lambda b, x: _half(b, x, 1.25), "half", [1.0, 0.25]),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", FORMS)
def test_rotary(form: str, interface: str) -> None:
    rotate, pairing, frequencies = FORMS[form]
    model = rotary_layer(rotate)
    result = rewrite(model, interface=interface, strict=True)
    (actual,) = attributes(result, "PadfreeRotary")
    assert actual == {"head_size": SIZE, "num_heads": 2 * HEADS, "pairing": pairing.encode()}
    np.testing.assert_array_equal(frequencies_of(result), [np.asarray(frequencies, np.float32)])
    assert attributes(result)[0]["qkv_layout"] == b"3HD"
    assert_agree(model, result)


POSITION_IDS = "position_ids"


def _by(b: PositionedBuilder, x: str, angles: str) -> str:
    """Heads rotated by angles [B,1,S,pairs]."""
    both = b.op("Concat", angles, angles, axis=-1)
    other = b.op("Concat", b.op("Neg", b.columns(x, 2, MANY)), b.columns(x, 0, 2), axis=-1)
    return b.op("Add", b.op("Mul", x, b.op("Cos", both)), b.op("Mul", other, b.op("Sin", both)))


def _angles_of(b: PositionedBuilder, positions: str) -> str:
    return b.op("Mul", b.op("Cast", b.op("Unsqueeze", positions, b.axes(1, 3)), to=FLOAT), b.constant(FREQUENCIES))


def _of_input(b: PositionedBuilder, x: str) -> str:
    return _by(b, x, _angles_of(b, POSITION_IDS))


def _products_of_input(b: PositionedBuilder, x: str) -> str:
    """As Llama writes it: a product of frequencies and positions."""
    row = b.op("Cast", b.op("Unsqueeze", POSITION_IDS, b.axes(1)), to=FLOAT)
    angles = b.op("Transpose", b.op("MatMul", b.constant(FREQUENCIES[None, :, None]), row), perm=[0, 2, 1])
    return _by(b, x, b.op("Unsqueeze", angles, b.axes(1)))


def _rows_by_input(b: PositionedBuilder, x: str) -> str:
    """Rows of constant tables, as for onnxruntime's operator."""
    angles = np.arange(20, dtype=np.float32)[:, None] * np.tile(FREQUENCIES, 2)
    rows = [b.op("Gather", b.constant(function(angles)), POSITION_IDS, axis=0) for function in (np.cos, np.sin)]
    cosine, sine = (b.op("Unsqueeze", row, b.axes(1)) for row in rows)
    other = b.op("Concat", b.op("Neg", b.columns(x, 2, MANY)), b.columns(x, 0, 2), axis=-1)
    return b.op("Add", b.op("Mul", x, cosine), b.op("Mul", other, sine))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("rotate", [_of_input, _products_of_input, _rows_by_input])
def test_positions_that_are_an_input(rotate: Rotate, interface: str) -> None:
    """Whatever positions it holds, in whatever order; the rotation reads them unchanged."""
    model = rotary_layer(rotate, None, POSITION_IDS)
    result = rewrite(model, interface=interface, strict=True)
    (node,) = [item for item in result.model.graph.node if item.op_type == "PadfreeRotary"]
    assert interface == "padded" or node.input[1] == POSITION_IDS
    np.testing.assert_array_equal(frequencies_of(result), [FREQUENCIES])
    assert attributes(result)[0]["qkv_layout"] == b"3HD"
    assert_agree(model, result)


def test_queries_by_an_input_and_keys_by_counted_positions() -> None:
    model = rotary_layer(_of_input, _half, POSITION_IDS)
    result = rewrite(model, strict=True)
    nodes = [item for item in result.model.graph.node if item.op_type == "PadfreeRotary"]
    assert [item.input[1] == POSITION_IDS for item in nodes] == [True, False]
    assert_agree(model, result)


def _halved_input(b: PositionedBuilder, x: str) -> str:
    """Two neighbouring positions have the same angle."""
    return _by(b, x, _angles_of(b, b.op("Div", POSITION_IDS, b.constant(2, np.int64))))


def _input_squared(b: PositionedBuilder, x: str) -> str:
    return _by(b, x, _angles_of(b, b.op("Mul", POSITION_IDS, POSITION_IDS)))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("rotate", [_halved_input, _input_squared])
def test_inputs_that_are_no_positions(rotate: Rotate, interface: str) -> None:
    model = rotary_layer(rotate, None, POSITION_IDS)
    result = rewrite(model, interface=interface, strict=True)
    assert "PadfreeRotary" not in result.report.plugins
    assert_agree(model, result)


def _less_the_first(b: PositionedBuilder, x: str) -> str:
    """Right for positions that count from 0, but a different rotation for all others."""
    first = b.op("Slice", POSITION_IDS, b.axes(0), b.axes(1), b.axes(1))
    return _by(b, x, _angles_of(b, b.op("Sub", POSITION_IDS, first)))


def test_positions_that_depend_on_other_slots_are_not_the_input() -> None:
    model = rotary_layer(_less_the_first, None, POSITION_IDS)
    result = rewrite(model, interface="padded")
    assert "PadfreeRotary" not in result.report.plugins
    assert_agree(model, result, only="prefix")


def _other_function(b: PositionedBuilder, x: str) -> str:
    return _half(b, x, function="Sqrt")


def _squared_positions(b: PositionedBuilder, x: str) -> str:
    """Angles that grow with the square of the position."""
    steps = b.op("Cast", b.steps(0, 1, 3), to=FLOAT)
    both = b.op("Concat", *[b.op("Mul", b.op("Mul", steps, steps), b.constant(FREQUENCIES))] * 2, axis=-1)
    other = b.op("Concat", b.op("Neg", b.columns(x, 2, MANY)), b.columns(x, 0, 2), axis=-1)
    return b.op("Add", b.op("Mul", x, b.op("Cos", both)), b.op("Mul", other, b.op("Sin", both)))


def _three_at_once(b: PositionedBuilder, x: str) -> str:
    """The elements do not form pairs."""
    return b.op("Add", _half(b, x), b.op("Mul", b.op("Concat", b.columns(x, 1, 4), b.columns(x, 0, 1), axis=3), b.op(
        "Sin", b.op("Concat", *[_angles(b)] * 2, axis=-1))))  # fmt: skip


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("rotate", [_other_function, _squared_positions, _three_at_once])
def test_what_is_no_rotation_stays_as_it_is(rotate: Rotate, interface: str) -> None:
    model = rotary_layer(rotate)
    result = rewrite(model, interface=interface, strict=True)
    assert "PadfreeRotary" not in result.report.plugins
    assert result.report.plugins["PadfreeAttention"] == 1
    assert_agree(model, result)


def test_queries_and_keys_that_are_rotated_by_other_frequencies() -> None:
    model = rotary_layer(_half, lambda b, x: b.op("Identity", _slower(b, x)))
    result = rewrite(model, strict=True)
    assert len(frequencies_of(result)) == 2
    assert attributes(result)[0]["qkv_layout"] == b"separate"
    assert_agree(model, result)


def _slower(b: PositionedBuilder, x: str) -> str:
    both = b.op("Concat", *[_angles(b, FREQUENCIES / 2)] * 2, axis=-1)
    other = b.op("Concat", b.op("Neg", b.columns(x, 2, MANY)), b.columns(x, 0, 2), axis=-1)
    return b.op("Add", b.op("Mul", x, b.op("Cos", both)), b.op("Mul", other, b.op("Sin", both)))


def _expand(b: PositionedBuilder, x: str) -> str:
    """As torch's repeat_kv is exported."""
    wide = b.op("Expand", b.op("Unsqueeze", x, b.axes(2)), b.axes(1, 1, 2, 1, 1))
    return b.op("Reshape", wide, b.axes(0, HEADS, -1, SIZE))


def _concatenate(b: PositionedBuilder, x: str) -> str:
    twice = b.op("Concat", *[b.op("Unsqueeze", x, b.axes(2))] * 2, axis=2)
    return b.op("Reshape", twice, b.axes(0, HEADS, -1, SIZE))


def _tile(b: PositionedBuilder, x: str) -> str:
    twice = b.op("Tile", b.op("Unsqueeze", x, b.axes(2)), b.axes(1, 1, 2, 1, 1))
    return b.op("Reshape", twice, b.axes(0, HEADS, -1, SIZE))


def _share(repeat: Callable[[PositionedBuilder, str], str], *, norm: bool, fewer: int = 2) -> ModelProto:
    """Two heads of K and V for four of Q, rotated; first with RMS norms of Q and K, as in Qwen3."""
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = b.split(x), b.split(x, fewer), b.split(x, fewer)
    if norm:
        q, k = (_norm(b, item) for item in (q, k))
    k, v = repeat(b, _half(b, k)), repeat(b, v)
    causal = b.op("Add", b.padding_mask(), b.causal_mask())
    return with_output(b.attend(x, _half(b, q), k, v, causal), b, TOKENS)


def _norm(b: PositionedBuilder, x: str) -> str:
    mean = b.op("ReduceMean", b.op("Mul", x, x), axes=[-1], keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-6)))
    return b.op("Mul", b.op("Div", x, root), b.weight(SIZE, center=1.0))


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("repeat", [_expand, _concatenate, _tile])
def test_fewer_heads_of_keys_and_values(repeat: Rotate, norm: bool, interface: str) -> None:
    model = _share(repeat, norm=norm)
    result = rewrite(model, interface=interface, strict=True)
    (actual,) = attributes(result)
    assert (actual["num_heads"], actual["num_kv_heads"]) == (HEADS, 2)
    assert (actual["window_left"], actual["window_right"]) == (-1, 0)
    assert actual["qkv_layout"] == (b"2HD" if norm else b"3HD")
    assert [item["num_heads"] for item in attributes(result, "PadfreeRotary")] == ([] if norm else [HEADS + 2])
    assert len(attributes(result, "PadfreeQkNormRotary")) == int(norm)
    assert_agree(model, result)


def test_one_head_for_all_queries() -> None:
    model = _share(lambda b, x: b.op("Expand", x, b.axes(1, HEADS, 1, 1)), norm=False, fewer=1)
    result = rewrite(model, strict=True)
    assert attributes(result)[0]["num_kv_heads"] == 1
    assert_agree(model, result)


def test_heads_that_are_shared_in_turns_are_read_once_each() -> None:
    """Query heads 0 and 2 read the first one, but PadfreeAttention needs neighbours."""
    model = _share(lambda b, x: b.op("Concat", x, x, axis=1), norm=False)
    result = rewrite(model, strict=True)
    assert attributes(result)[0]["num_kv_heads"] == HEADS
    assert_agree(model, result)
