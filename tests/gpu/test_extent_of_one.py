# SPDX-License-Identifier: Apache-2.0
"""Padded attention and convolutions where the longest sequence is one token; docs/notes/2026-11-22-extent-of-one.md."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from .extent_of_one import CASES, errors

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]


@pytest.mark.parametrize(("form", "kind", "tolerance"), CASES)
def test_axes_of_one_are_right(form: str, kind: str, tolerance: float) -> None:
    found = errors(form, kind, mended=True)
    assert max(found.values()) <= tolerance, found
