# SPDX-License-Identifier: Apache-2.0
"""Errors of rows whose differences are known: overall, by length class, and where the worst ones are."""

from __future__ import annotations

import numpy as np
import pytest
from padfree.builder.compare.batches import ComparedBatch
from padfree.builder.compare.metrics import output_errors
from padfree.builder.compare.tolerances import Tolerance
from padfree.onnx_tools.verification.agreement import measure

LENGTHS = np.asarray([1, 3, 20])
BATCH = ComparedBatch("ragged", {}, np.arange(20) < LENGTHS[:, None])
WANTED = np.tile(np.asarray([3.0, 4.0], np.float32), (24, 1))  # rows of norm 5
SCALE = measure([WANTED])
TOKENS, SEQUENCES = ("B", "S"), ("B",)


def test_errors_are_parts_of_the_outputs_size() -> None:
    actual = WANTED.copy()
    actual[2] = [3.0, 4.5]  # request 1, position 1
    actual[10] = [-4.0, 3.0]  # request 2, position 6: turned by a right angle
    result = output_errors("y", [BATCH], [WANTED], [actual], SCALE, TOKENS)
    assert result.scale == pytest.approx(12.5**0.5)  # the sizes of the columns, 3 and 4, are measured separately
    assert list(result.classes) == ["1", "2-16", "17-64"]
    assert [errors.rows for errors in result.classes.values()] == [1, 3, 20]
    assert result.classes["1"].absolute == 0.0
    short = result.classes["2-16"]
    assert (short.absolute, short.relative) == (pytest.approx(0.125), pytest.approx(0.125 / 2**0.5))
    assert short.cosine == pytest.approx(2.125 / (2 * (1 + 1.125**2)) ** 0.5)
    turned_away = ((7 / 3) ** 2 + 0.25**2) ** 0.5 / 2**0.5
    assert result.total.absolute == pytest.approx(7 / 3)
    assert result.total.relative == pytest.approx(turned_away)
    assert result.total.cosine == pytest.approx((-4 / 3 + 3 / 4) / (2 * ((4 / 3) ** 2 + (3 / 4) ** 2)) ** 0.5)
    assert result.total.mean_relative == pytest.approx((short.relative + turned_away) / 24)
    turned, longer = result.worst[:2]
    assert (turned.request, turned.position, turned.element, turned.wanted, turned.found) == (2, 6, (0,), 3.0, -4.0)
    assert (longer.request, longer.position, longer.element, longer.wanted, longer.found) == (1, 1, (1,), 4.0, 4.5)


def test_outputs_of_sequences_have_no_position() -> None:
    actual = WANTED[:3] * np.float32(1.01)
    result = output_errors("y", [BATCH], [WANTED[:3]], [actual], SCALE, SEQUENCES)
    assert result.total.relative == pytest.approx(0.01, rel=1e-4)
    assert [errors.rows for errors in result.classes.values()] == [1, 1, 1]
    assert {row.position for row in result.worst} == {None}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_never_agree(value: float) -> None:
    actual = WANTED.copy()
    actual[0, 0] = value
    result = output_errors("y", [BATCH], [WANTED], [actual], SCALE, TOKENS)
    assert result.not_finite == 1
    assert not result.total.within(Tolerance(1e30, 1e30))
    both = output_errors("y", [BATCH], [actual], [actual], SCALE, TOKENS)  # the original's number is not finite either
    assert both.not_finite == 0
    assert both.total.within(Tolerance(1e-30, 1e-30))


@pytest.mark.parametrize("other", [np.finfo(np.float32).min, -1e4, -np.inf, np.nan, 1e6])
def test_no_column_hides_another(other: float) -> None:
    wanted = np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32)
    wanted[:, 1] = other
    actual = wanted.copy()
    actual[:, 2] *= -3
    tolerance = Tolerance(0.4, 0.4)  # wider than bf16's
    scale = measure([wanted])
    assert output_errors("y", [BATCH], [wanted], [wanted], scale, TOKENS).total.within(tolerance)
    assert not output_errors("y", [BATCH], [wanted], [actual], scale, TOKENS).total.within(tolerance)
    moved = wanted.copy()
    moved[:, 1:] = moved[:, :0:-1]
    assert not output_errors("y", [BATCH], [wanted], [moved], scale, TOKENS).total.within(tolerance)


def test_outputs_with_several_axes_of_slots() -> None:
    """Rows are the kept queries and keys of an attention's weights; errors are at the query's position."""
    batch = ComparedBatch("ragged", {}, np.arange(3) < np.asarray([3, 1])[:, None])
    wanted = np.random.default_rng(0).standard_normal((10, 2))
    actual = wanted.copy()
    actual[4, 1] += 10  # of sequence 0: query 1, key 1
    actual[9, 0] += 20  # of sequence 1: query 0, key 0
    result = output_errors("y", [batch], [wanted], [actual], measure([wanted]), ("B", 2, "S", "S"))
    assert {(row.request, row.position) for row in result.worst[:2]} == {(0, 1), (1, 0)}
    assert [errors.rows for errors in result.classes.values()] == [1, 9]
