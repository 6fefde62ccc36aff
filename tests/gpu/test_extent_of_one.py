# SPDX-License-Identifier: Apache-2.0
"""Padded attention where the longest sequence is one token; docs/notes/2026-11-22-extent-of-one.md."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from .extent_of_one import errors

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

TOLERANCES = {"float": 1e-5, "float16": 5e-3}


@pytest.mark.parametrize("kind", TOLERANCES)
def test_lengthened_products_are_right(kind: str) -> None:
    found = errors(kind, lengthened=True)
    assert max(found.values()) <= TOLERANCES[kind], found
