# SPDX-License-Identifier: Apache-2.0
"""What recorded lines were measured with, in the words that every table of the documents uses."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.records import EARLIER_COMMITS

VERSIONS = {
    "gpu": "",
    "driver": "driver ",
    "torch": "PyTorch ",
    "nvidia-cudnn-cu13": "cuDNN ",
    "flashinfer-python": "flashinfer ",
    "flash-attn-4": "flash-attn-4 ",
    "flashdeberta": "flashdeberta ",
    "disentangled-flash": "disentangled-flash ",
    "tensorrt": "TensorRT ",
}
"""Fields of a record for what it was measured with, and how the page introduces them."""


def commits_of(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commits of the records, each once."""
    return list(dict.fromkeys(record["commit"] for record in records))


def made_with(records: Sequence[Mapping[str, Any]]) -> str:
    """Sentences with the commits (those of peers in brackets too), the machine, and the versions of all that ran."""
    versions = [
        prefix + " or ".join(values)
        for field, prefix in VERSIONS.items()
        if (values := list(dict.fromkeys(record[field] for record in records if _ran(record, field))))
    ]
    earlier = list(dict.fromkeys(commit for record in records for commit in record.get(EARLIER_COMMITS, ())))
    brackets = f" Figures in brackets were measured at {', '.join(earlier)}." if earlier else ""
    text = f"Measured at commit {', '.join(commits_of(records))}: {', '.join(versions)}.{brackets}"
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _ran(record: Mapping[str, Any], field: str) -> bool:
    """Whether the component of a version field took part: a peer that is installed may still have failed."""
    return field in record and field not in record.get("unavailable", {})
