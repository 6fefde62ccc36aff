# SPDX-License-Identifier: Apache-2.0
"""Disentangled attention: tables by distance that rows of Q and K are multiplied by, and what only looks like one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from padfree.onnx_tools import RewriteError, RewriteResult, load_model, rewrite

from tests.onnx_tools.agreement import assert_agree
from tests.support.encoder import HIDDEN, TOKENS, with_output
from tests.support.exports import assert_right, inputs_of, load
from tests.support.families import Case, all_cases, assert_same, optimum_cases

from .attention_forms import (
    FLOAT,
    HEADS,
    INT64,
    SIZE,
    PositionedBuilder,
    assert_stays_on_islands,
    attributes,
    miss_reason,
)

SPAN, BUCKETS = 4, 2  # rows for distances in each direction; distances with a row of their own
SCALE = 1.0 / math.sqrt(3 * SIZE)
Index = Callable[[PositionedBuilder], str]


def _distance(b: PositionedBuilder) -> str:
    """Query position minus key position, [S,S]."""
    return b.op("Sub", b.steps(1), b.steps(0))


def _bucket(b: PositionedBuilder, far: str) -> str:
    """The distance, logarithmic from BUCKETS on: 3 for 3 and 4, 4 for 5 to 12."""
    away = b.op("Max", b.op("Abs", far), b.number(BUCKETS))
    ratio = b.op("Log", b.op("Div", b.op("Cast", away, to=FLOAT), b.constant(BUCKETS)))
    steps = b.op("Ceil", b.op("Mul", b.op("Div", ratio, b.constant(math.log(6.0))), b.constant(2.0)))
    coarse = b.op("Mul", b.op("Cast", b.op("Add", steps, b.constant(BUCKETS)), to=INT64), b.op("Sign", far))
    return b.op("Where", b.op("LessOrEqual", away, b.number(BUCKETS)), far, coarse)


def _clip(b: PositionedBuilder, far: str) -> str:
    return b.op("Clip", b.op("Add", far, b.number(SPAN)), b.number(0), b.number(2 * SPAN - 1))


def _buckets(b: PositionedBuilder) -> str:
    return _clip(b, _bucket(b, _distance(b)))


def _distances(b: PositionedBuilder) -> str:
    return _clip(b, _distance(b))


def _other_way(b: PositionedBuilder) -> str:
    return _clip(b, b.op("Neg", _distance(b)))


def _table(b: PositionedBuilder, rows: int = 2 * SPAN, embeddings: str | None = None) -> str:
    """[H,D,rows]: projected embeddings after a norm."""
    result = b.linear(b.norm(embeddings or b.weight(rows, HIDDEN)), HIDDEN, HIDDEN)
    return b.op("Transpose", b.op("Reshape", result, b.axes(-1, HEADS, SIZE)), perm=[1, 2, 0])


def _choose(b: PositionedBuilder, rows: str, table: str, index: str) -> str:
    """From the product of rows and a table, the elements [B,H,S,S] that an index [S,S] selects."""
    gemms = b.op("MatMul", rows, table)
    size = b.op("Shape", "input_ids", start=0, end=1), b.op("Shape", "input_ids", start=1)
    shape = b.op("Concat", size[0], b.axes(HEADS), size[1], size[1], axis=0)
    return b.op("GatherElements", gemms, b.op("Expand", index, shape), axis=-1)


def _transpose(b: PositionedBuilder, x: str) -> str:
    return b.op("Transpose", x, perm=[0, 1, 3, 2])


Terms = Callable[[PositionedBuilder, str, str], list[str]]


def _model(terms: Terms, mask: str = "keys") -> ModelProto:
    """One layer whose scores are the sum of q k and the terms, all times SCALE."""
    b = PositionedBuilder()
    x = b.embedding()
    q, k, v = (b.split(x) for _ in range(3))
    scores = b.op("Mul", b.op("MatMul", q, _transpose(b, k)), b.constant(SCALE))
    total = None
    for term in terms(b, q, k):
        term = b.op("Div", term, b.constant(1.0 / SCALE))
        total = term if total is None else b.op("Add", total, term)
    scores = b.op("Add", scores, total or "")
    if mask == "keys":
        scores = b.op("Add", scores, b.padding_mask())
    else:  # masks both the query's slot and the key's
        kept = b.kept_keys()
        scores = b.op("Where", b.op("And", kept, _transpose(b, kept)), scores, b.constant(-1e30))
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    joined = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.axes(0, 0, HIDDEN))
    return with_output(b.norm(b.op("Add", b.linear(joined, HIDDEN, HIDDEN), x)), b, TOKENS)


def _both(index: Index, other: Index) -> Terms:
    def terms(b: PositionedBuilder, q: str, k: str) -> list[str]:
        of_keys = _choose(b, k, _table(b), other(b))
        return [_choose(b, q, _table(b), index(b)), _transpose(b, of_keys)]

    return terms


def _of_queries(b: PositionedBuilder, q: str, _: str) -> list[str]:
    return [_choose(b, q, _table(b), _buckets(b))]


def _of_keys(b: PositionedBuilder, _: str, k: str) -> list[str]:
    return [_transpose(b, _choose(b, k, _table(b), _distances(b)))]


def _other_factor(b: PositionedBuilder, q: str, k: str) -> list[str]:
    """Q is multiplied by one number before the MatMul, the product by another."""
    rows = b.op("Mul", q, b.constant(0.5))
    return [b.op("Mul", _choose(b, rows, _table(b), _buckets(b)), b.constant(-1.5)), *_of_keys(b, q, k)]


def _middle(b: PositionedBuilder, q: str, _: str) -> list[str]:
    """DeBERTa v1: the middle of the embeddings, cut to the length that the sequence needs."""
    length = b.op("Min", b.op("Shape", "input_ids", start=1), b.axes(SPAN))
    start, end = b.op("Sub", b.axes(SPAN), length), b.op("Add", b.axes(SPAN), length)
    embeddings = b.op("Slice", b.weight(2 * SPAN, HIDDEN), start, end, b.axes(0))
    last = b.op("Sub", b.op("Mul", length, b.number(2)), b.number(1))
    shifted = b.op("Add", _distance(b), length)
    index = b.op("Max", b.op("Min", shifted, last), b.number(0))
    return [_choose(b, q, _table(b, embeddings=embeddings), index)]


def tables(result: RewriteResult) -> dict[str, np.ndarray]:
    """The tables of the model's only attention."""
    node = next(node for node in result.model.graph.node if node.op_type == "PadfreeAttention")
    constants = {item.name: item for item in result.model.graph.initializer}
    actual = attributes(result)[0]
    names = [name for name in ("k_position", "q_position") if actual[f"has_{name}"]]
    return {
        name: np.asarray(numpy_helper.to_array(constants[inputs]))
        for name, inputs in zip(names, node.input[-len(names) :], strict=True)
    }


@pytest.mark.parametrize("mask", ["keys", "pairs"])
@pytest.mark.parametrize(
    ("terms", "names", "reach"),
    [
        (_both(_buckets, _buckets), {"k_position", "q_position"}, 5),
        (_both(_distances, _other_way), {"k_position", "q_position"}, SPAN),
        (_of_queries, {"k_position"}, 5),
        (_of_keys, {"q_position"}, SPAN),
        (_other_factor, {"k_position", "q_position"}, 5),
        (_middle, {"k_position"}, SPAN),
    ],
)
def test_tables(terms: Terms, names: set[str], reach: int, mask: str) -> None:
    model = _model(terms, mask)
    result = rewrite(model, strict=True)
    (actual,) = attributes(result)
    assert actual["bias"] == b"disentangled"
    assert actual["bias_range"] == reach
    np.testing.assert_allclose(actual["scale"], SCALE, rtol=1e-6)
    assert {name: output.shape for name, output in tables(result).items()} == dict.fromkeys(
        names, (2 * reach + 1, HEADS * SIZE)
    )
    assert_agree(model, result)
    padded = rewrite(model, interface="padded")
    assert "has a bias by distance: under a mask with holes" in miss_reason(padded)
    assert_agree(model, padded)


def _by_ids(b: PositionedBuilder) -> str:
    far = b.op("Sub", *(b.op("Unsqueeze", "input_ids", b.axes(axis)) for axis in (1, 2)))
    return b.op("Unsqueeze", _clip(b, far), b.axes(1))


def _by_sums(b: PositionedBuilder) -> str:
    return b.op("Min", b.op("Add", b.steps(0), b.steps(1)), b.number(2 * SPAN - 1))


def _choosing(index: Index) -> Terms:
    return lambda b, q, _: [_choose(b, q, _table(b), index(b))]


def _table_of_tokens(b: PositionedBuilder, q: str, k: str) -> list[str]:
    """The index selects from a product of Q with the first keys."""
    first = b.op("Slice", k, b.axes(0), b.axes(1), b.axes(2))
    index = b.op("Clip", _distance(b), b.number(0), b.number(0))
    return [_choose(b, q, _transpose(b, first), index)]


def _other_rows(b: PositionedBuilder, q: str, _: str) -> list[str]:
    """The rows are neither Q nor K."""
    return [_choose(b, b.op("Relu", q), _table(b), _distances(b))]


def _keys_instead_of_queries(b: PositionedBuilder, _: str, k: str) -> list[str]:
    return [_choose(b, k, _table(b), _distances(b))]


def _longer(b: PositionedBuilder, q: str, _: str) -> list[str]:
    """Distances count from the sequence's own middle: in longer sequences they have other rows."""
    half = b.op("Div", b.op("Min", b.op("Shape", "input_ids", start=1), b.axes(2 * SPAN)), b.number(2))
    index = b.op("Clip", b.op("Add", _distance(b), half), b.number(0), b.number(2 * SPAN - 1))
    return [_choose(b, q, _table(b), index)]


@pytest.mark.parametrize(
    ("terms", "reason"),
    [
        (_choosing(_by_ids), "chooses by an index that is not made of positions alone"),
        (_choosing(_by_sums), "is added to the scores of 65536 tokens"),
        (_table_of_tokens, "are no dot products of Q with a constant table"),
        (_other_rows, "chooses among dot products of a table with something else than Q"),
        (_keys_instead_of_queries, "chooses among dot products of a table with something else than Q"),
    ],
)
def test_other_terms_stay_on_islands(terms: Terms, reason: str) -> None:
    assert_stays_on_islands(_model(terms), reason)


def test_rows_that_depend_on_the_length_are_refused() -> None:
    with pytest.raises(RewriteError, match="chooses other rows by distance among 1 tokens"):
        rewrite(_model(_longer))


FILES = [case for case in [*all_cases(), *optimum_cases()] if case.family.startswith("deberta") and not case.static]


@pytest.mark.parametrize("case", FILES, ids=lambda case: f"{case.exporter}-{case.name}")
def test_families(case: Case) -> None:
    result = rewrite(load_model(case.path), verify=False)
    assert_same(case, "packed", result)
    assert result.report.plugins["PadfreeAttention"] == 2
    assert [actual["qkv_layout"] for actual in attributes(result)] == [b"3HD"] * 2


@pytest.mark.parametrize("name", ["deberta_v1_dynamo", "deberta_v1_torchscript"])
def test_first_version(name: str) -> None:
    result = assert_right(load(name), inputs_of(name), "packed")
    assert result.report.complete
    assert [actual["qkv_layout"] for actual in attributes(result)] == [b"3HD"] * 2


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_precision(precision: str) -> None:
    case = next(case for case in FILES if case.name == "deberta_v3_dynamo_eager")
    result = rewrite(load_model(case.path), precision=precision)
    dtype = {"fp16": "float16", "bf16": "bfloat16"}[precision]
    assert {output.dtype.name for output in tables(result).values()} == {dtype}
