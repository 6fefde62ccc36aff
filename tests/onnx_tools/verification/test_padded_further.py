# SPDX-License-Identifier: Apache-2.0
"""Originals whose results depend on how far a batch is padded: no packed graph may reproduce them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from padfree.onnx_tools import RewriteError, rewrite

from tests.support.encoder import HIDDEN
from tests.support.mask_models import FLOAT, Builder


def _length(b: Builder) -> str:
    return b.op("Cast", b.op("Shape", "input_ids", start=1), to=FLOAT)


LENGTH_IS_A_NUMBER: dict[str, Callable[[Builder, str], str]] = {
    "times S": lambda b, x: b.op("Mul", x, _length(b)),
    "over the root of S": lambda b, x: b.op("Div", x, b.op("Sqrt", _length(b))),
    "more than 8 slots": lambda b, x: b.op(
        "Where", b.op("Greater", b.op("Shape", "input_ids", start=1), b.number(8)), x, b.op("Neg", x)
    ),
    "positions from the end": lambda b, x: b.op(
        "Add",
        x,
        b.op(
            "Unsqueeze",
            b.op(
                "Range",
                b.op("Squeeze", _length(b)),
                b.constant(0.0),
                b.constant(-1.0),
            ),
            b.axes(0, 2),
        ),
    ),
}


@pytest.mark.parametrize("form", LENGTH_IS_A_NUMBER)
def test_how_far_a_batch_is_padded_may_be_no_number_in_packed_graphs(form: str) -> None:
    """Original and packed graph agree on a batch, because both depend on its longest sequence, but neither may."""
    b = Builder()
    hidden = b.layer(b.embedding(), b.padding_mask())
    b.op("Identity", LENGTH_IS_A_NUMBER[form](b, hidden), output="y")
    model = b.model({"y": ["batch", "sequence", HIDDEN]})
    with pytest.raises(RewriteError, match="'y' of the original depends on how far a batch is padded"):
        rewrite(model)
    assert rewrite(model, interface="padded").report.plugins["PadfreeAttention"] == 1


def test_a_mean_over_all_slots_is_refused_where_it_is_packed() -> None:
    """Masked sums divided by S instead of the number of tokens depend on how far a batch is padded."""
    b = Builder()
    hidden = b.layer(b.embedding(), b.padding_mask())
    mask = b.op("Unsqueeze", b.op("Cast", "attention_mask", to=FLOAT), b.axes(2))
    b.op("ReduceMean", b.op("Mul", hidden, mask), axes=[1], keepdims=0, output="y")
    with pytest.raises(RewriteError, match=r"depends on how far a batch is padded|reads masked slots"):
        rewrite(b.model({"y": ["batch", HIDDEN]}))


def _score(b: Builder) -> str:
    """One number per token, 0 in masked slots: [B,S]."""
    hidden = b.layer(b.embedding(), b.padding_mask())
    score = b.op("Squeeze", b.linear(hidden, HIDDEN, 1), b.axes(2))
    return b.op("Mul", score, b.op("Cast", "attention_mask", to=FLOAT))


@pytest.mark.parametrize("seed", range(4))
def test_zeros_of_masked_slots_may_not_be_a_maximum(seed: int) -> None:
    """The sequence has only negative scores, as short ones may, and its batch may be padded or not."""
    b = Builder(seed)
    b.op("ReduceMax", _score(b), axes=[1], keepdims=0, output="y")
    with pytest.raises(RewriteError, match=r"depends on how far a batch is padded|reads masked slots"):
        rewrite(b.model({"y": ["batch"]}))


def _mean_of_batch(b: Builder) -> str:
    return b.op("ReduceMean", _first(b), axes=[0], keepdims=1)


def _size_of_batch(b: Builder) -> str:
    return b.op("Cast", b.op("Shape", "input_ids", end=1), to=FLOAT)


def _first(b: Builder) -> str:
    hidden = b.layer(b.embedding(), b.padding_mask())
    return b.op("Gather", hidden, b.constant(0, np.int64), axis=1)


@pytest.mark.parametrize("form", [_mean_of_batch, _size_of_batch])
def test_originals_that_mix_sequences_are_named_as_such(form: Callable[[Builder], str]) -> None:
    """The two differ if a packed batch holds sequences without tokens: that is not a defect to report."""
    b = Builder()
    b.op("Add", _first(b), form(b), output="y")
    model = b.model({"y": ["batch", HIDDEN]})
    with pytest.raises(RewriteError, match="depend on the others of its batch") as caught:
        rewrite(model)
    assert "report this" not in str(caught.value)
    assert rewrite(model, interface="padded").report.plugins["PadfreeAttention"] == 2 - (form is _size_of_batch)


def test_a_packed_model_that_follows_the_longest_length_of_its_batch_warns(caplog: pytest.LogCaptureFixture) -> None:
    """It agrees with the original on every batch; a sequence alone gets other numbers."""
    b = Builder()
    hidden = b.layer(b.embedding(), b.padding_mask())
    lengths = b.op("ReduceSum", "attention_mask", b.axes(1), keepdims=1)
    longest = b.op("Cast", b.op("ReduceMax", lengths, axes=[0], keepdims=1), to=FLOAT)
    b.op("Mul", hidden, b.op("Unsqueeze", longest, b.axes(2)), output="y")
    with caplog.at_level("WARNING"):
        rewrite(b.model({"y": ["batch", "sequence", HIDDEN]}))
    assert "depend on the others of its batch" in caplog.text
