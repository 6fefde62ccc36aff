# SPDX-License-Identifier: Apache-2.0
"""Weights that take over a norm's scale, some rows at a time."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from padfree.onnx_tools.analysis import Editor
from padfree.onnx_tools.files import HeldValues, held_constant
from padfree.onnx_tools.match import NoMatch
from padfree.onnx_tools.operators import ACT_TYPES
from padfree.onnx_tools.passes.norms.folded_weights import FoldedWeights, values_of
from padfree.onnx_tools.precision import round_values

SHAPE = (1000, 700)  # more than two pieces of rows, the last one shorter


def constants(precision: str, factor: float, place: tuple[int, int] | None, number: float) -> list[gs.Constant]:
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal(SHAPE) * factor).astype(np.float32)
    if place is not None:
        weight[place] = number
    gamma = rng.standard_normal(SHAPE[0]).astype(np.float32)
    return [
        held_constant(name, ACT_TYPES[precision], round_values(values, precision))
        for name, values in (("weight", weight), ("gamma", gamma))
    ]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_all_rows_are_scaled(precision: str) -> None:
    weight, gamma = constants(precision, 0.02, None, 0)
    scaled = FoldedWeights(Editor(gs.Graph()), precision).scale(weight, gamma, centred=False)
    assert isinstance(scaled._values, HeldValues)
    wanted = round_values(values_of(weight) * values_of(gamma)[:, np.newaxis], precision)
    np.testing.assert_array_equal(np.frombuffer(scaled._values.data, np.uint16), wanted.view(np.uint16).ravel())


@pytest.mark.parametrize("place", [(0, 0), (500, 350), (999, 699)])
@pytest.mark.parametrize(
    ("number", "reason"),
    [(np.inf, "cannot hold"), (np.nan, "cannot hold"), (65504.0, "holds at most 65504")],
)
def test_what_does_not_fit_is_found_anywhere(place: tuple[int, int], number: float, reason: str) -> None:
    weight, gamma = constants("fp16", 0.02, place, number)
    gamma = held_constant("gamma", ACT_TYPES["fp16"], np.full(SHAPE[0], 1.5, np.float16))
    with pytest.raises(NoMatch, match=reason):
        FoldedWeights(Editor(gs.Graph()), "fp16").scale(weight, gamma, centred=False)


def test_small_numbers_are_lost() -> None:
    weight, gamma = constants("fp16", 1e-6, None, 0)
    with pytest.raises(NoMatch, match="fp16 loses"):
        FoldedWeights(Editor(gs.Graph()), "fp16").scale(weight, gamma, centred=False)
