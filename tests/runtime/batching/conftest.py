# SPDX-License-Identifier: Apache-2.0
"""The model of a batcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .batcher_model import Model


@pytest.fixture
def model(packed_metadata: dict[str, Any]) -> Iterator[Model]:
    """A model for a batcher; held-up runs go on when the test ends."""
    result = Model(packed_metadata)
    yield result
    result.gate.set()
