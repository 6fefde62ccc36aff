# SPDX-License-Identifier: Apache-2.0
"""The records of published models as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADINGS = ("cosines to PyTorch fp32", "texts", "tokens", "longest", "worst", "mean", "below the goal", "goal")


def cells(record: Mapping[str, Any]) -> list[str]:
    """One row; PyTorch's figures in fp16 follow ours in brackets."""

    def beside(name: str, shown: str) -> str:
        return f"{record[name]:{shown}} ({record['torch_fp16'][name]:{shown}})"

    return [
        record["case"],
        *(str(record[name]) for name in ("texts", "tokens", "longest")),
        *(beside(name, ".7f") for name in ("cosine_worst", "cosine_mean")),
        beside("below_goal", "d"),
        f"{record['goal']} {'met' if record['passed'] else 'missed'}",
    ]
