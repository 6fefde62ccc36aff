# SPDX-License-Identifier: Apache-2.0
"""Errors of rows whose differences are known: overall, by length class, and where the worst are."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("polygraphy")

from padfree.builder.compare.batches import Batch
from padfree.builder.compare.metrics import output_errors, root_mean_square
from padfree.builder.compare.tolerances import Tolerance

LENGTHS = np.asarray([1, 3, 20])
BATCH = Batch("ragged", {}, np.arange(20) < LENGTHS[:, None])
WANTED = np.tile(np.asarray([3.0, 4.0], np.float32), (24, 1))  # rows of length 5
SCALE = root_mean_square([WANTED])


def test_errors_are_parts_of_the_outputs_size() -> None:
    found = WANTED.copy()
    found[2] = [3.0, 4.5]  # request 1, position 1
    found[10] = [-4.0, 3.0]  # request 2, position 6: turned by a right angle
    result = output_errors("y", [BATCH], [WANTED], [found], SCALE)
    assert pytest.approx(12.5**0.5) == SCALE
    assert list(result.classes) == ["1", "2-16", "17-64"]
    assert [errors.rows for errors in result.classes.values()] == [1, 3, 20]
    assert result.classes["1"].absolute == 0.0
    short = result.classes["2-16"]
    assert (short.absolute, short.relative) == (pytest.approx(0.5 / SCALE), pytest.approx(0.1))
    assert short.cosine == pytest.approx((9 + 18) / (5 * 29.25**0.5))
    assert result.total.absolute == pytest.approx(7 / SCALE)
    assert result.total.relative == pytest.approx(50**0.5 / 5)
    assert result.total.cosine == pytest.approx(0.0)
    assert result.total.mean_relative == pytest.approx((0.1 + 2**0.5) / 24)
    turned, longer = result.worst[:2]
    assert (turned.request, turned.position, turned.element, turned.wanted, turned.found) == (2, 6, (0,), 3.0, -4.0)
    assert (longer.request, longer.position, longer.element, longer.wanted, longer.found) == (1, 1, (1,), 4.0, 4.5)


def test_outputs_of_sequences_have_no_position() -> None:
    found = WANTED[:3] * np.float32(1.01)
    result = output_errors("y", [BATCH], [WANTED[:3]], [found], SCALE)
    assert result.total.relative == pytest.approx(0.01, rel=1e-4)
    assert [errors.rows for errors in result.classes.values()] == [1, 1, 1]
    assert {row.position for row in result.worst} == {None}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_never_agree(value: float) -> None:
    found = WANTED.copy()
    found[0, 0] = value
    result = output_errors("y", [BATCH], [WANTED], [found], SCALE)
    assert result.not_finite == 1
    assert not result.total.within(Tolerance(1e30, 1e30))
    both = output_errors("y", [BATCH], [found], [found], SCALE)  # where the original's is not finite either
    assert both.not_finite == 0
    assert both.total.within(Tolerance(1e-30, 1e-30))
