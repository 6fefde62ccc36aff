# SPDX-License-Identifier: Apache-2.0
"""The picture of the Hopper attention kernel keeps to the kernel's rules."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.pages import pipeline_plot, style

SPANS = pipeline_plot.Pipeline().play()


@pytest.mark.parametrize("row", pipeline_plot.ROWS)
def test_a_row_does_one_thing_at_a_time(row: str) -> None:
    spans = sorted((span for span in SPANS if span.row == row), key=lambda span: span.begin)
    assert len(spans) > 1
    assert all(before.end <= after.begin for before, after in pairwise(spans))


def test_warpgroups_multiply_in_turns() -> None:
    spans = sorted((span for span in SPANS if span.row == "tensor cores"), key=lambda span: span.begin)
    assert [span.text for span in spans] == ["0", "1", "2"] * (len(spans) // 3)


def test_text_stands_out_from_its_bar() -> None:
    for span in SPANS:
        for opacity in (1.0, pipeline_plot.LIGHTER):
            ground = style.on_white(span.colour, opacity)
            assert style.contrast(style.readable_ink(span.colour, opacity), ground) >= 4.5, (span.row, opacity)


def test_the_picture_is_readable_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pipeline_plot.draw(tmp_path / "x.svg")
    texts = " ".join(ElementTree.parse(tmp_path / "x.svg").getroot().itertext())
    assert all(word in texts for word in (*pipeline_plot.ROWS, "softmax 0", "PV0 QK1", "output"))
