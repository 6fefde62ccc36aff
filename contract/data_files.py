# SPDX-License-Identifier: Apache-2.0
"""Files of texts, token ids and results: what the end of a file's name, in upper or lower case, says of its content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PARQUET, JSON_LINES, CSV, TEXT, ARRAYS = "parquet", "jsonl", "csv", "text", "npz"
SUFFIXES: Mapping[str, str] = {
    ".parquet": PARQUET,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".csv": CSV,
    ".txt": TEXT,
    ".npz": ARRAYS,
}
TABLE_KINDS = (CSV, PARQUET)
ROW_KINDS = (PARQUET, JSON_LINES, CSV, TEXT)
"""The kinds with a text or an object in each row or line."""
ARCHIVES = (".gz", ".zst", ".bz2", ".xz", ".lz4")


def kind_of(name: str | Path) -> str:
    """The kind of content of a file with this name or path; "" for names with another end."""
    text = str(name).lower()
    return next((kind for suffix, kind in SUFFIXES.items() if text.endswith(suffix)), "")


def suffixes_of(*kinds: str) -> str:
    """The suffixes of some kinds, for messages."""
    return ", ".join(suffix for suffix, kind in SUFFIXES.items() if kind in kinds)


def is_archive(name: str | Path) -> bool:
    """Whether a file with this name is compressed as a whole."""
    return str(name).lower().endswith(ARCHIVES)
