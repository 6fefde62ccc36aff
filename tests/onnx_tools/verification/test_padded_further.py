# SPDX-License-Identifier: Apache-2.0
"""Originals whose answers follow how far a batch is padded: no packed graph may have them."""

from __future__ import annotations

from collections.abc import Callable

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
    """Original and packed graph agree on a batch: both follow its longest sequence, and neither may."""
    b = Builder()
    hidden = b.layer(b.embedding(), b.padding_mask())
    b.op("Identity", LENGTH_IS_A_NUMBER[form](b, hidden), output="y")
    model = b.model({"y": ["batch", "sequence", HIDDEN]})
    with pytest.raises(RewriteError, match="'y' of the original depends on how far a batch is padded"):
        rewrite(model)
    assert rewrite(model, interface="padded").report.plugins["PadfreeAttention"] == 1


def test_a_mean_over_all_slots_is_refused_where_it_is_packed() -> None:
    """Masked sums over S, not over the number of tokens, follow how far a batch is padded."""
    b = Builder()
    hidden = b.layer(b.embedding(), b.padding_mask())
    mask = b.op("Unsqueeze", b.op("Cast", "attention_mask", to=FLOAT), b.axes(2))
    b.op("ReduceMean", b.op("Mul", hidden, mask), axes=[1], keepdims=0, output="y")
    with pytest.raises(RewriteError, match=r"depends on how far a batch is padded|reads masked slots"):
        rewrite(b.model({"y": ["batch", HIDDEN]}))
