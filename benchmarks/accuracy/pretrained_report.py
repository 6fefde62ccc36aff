# SPDX-License-Identifier: Apache-2.0
"""Published models' records as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADINGS = ("model", "texts", "tokens", "longest", "worst cosine", "mean cosine", "goal")


def cells(record: Mapping[str, Any]) -> list[str]:
    """One row."""
    return [
        record["case"],
        *(str(record[name]) for name in ("texts", "tokens", "longest")),
        *(f"{record[name]:.7f}" for name in ("cosine_worst", "cosine_mean")),
        f"{record['goal']} {'met' if record['passed'] else 'missed'}",
    ]
