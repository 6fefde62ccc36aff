# SPDX-License-Identifier: Apache-2.0
"""Files of texts, token ids and results: what the end of a file's name, in upper or lower case, says of its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
STREAM = "is a stream, and inputs are files of a known kind; save it, as texts.txt, and pass that"
"""What is said of a stream, after its name."""
_OTHER_SEPARATORS = {"\t": "tabs", ";": "semicolons", "|": "bars"}
ARCHIVES = (".gz", ".zst", ".bz2", ".xz", ".lz4")


def kind_of(name: str | Path) -> str:
    """The kind of content of a file with this name or path; "" for names with another end."""
    text = str(name).lower()
    return next((kind for suffix, kind in SUFFIXES.items() if text.endswith(suffix)), "")


def suffixes_of(*kinds: str) -> str:
    """The suffixes of some kinds, for messages."""
    return ", ".join(suffix for suffix, kind in SUFFIXES.items() if kind in kinds)


def other_separator(columns: Sequence[str]) -> str:
    """What separates the columns of a file named .csv whose first line is a single one; "" where nothing seems to."""
    (name,) = columns if len(columns) == 1 else ("",)
    return next((word for letter, word in _OTHER_SEPARATORS.items() if letter in name), "")


def is_stream(path: Path) -> bool:
    """Whether a path is another command's output: `-`, /dev/stdin, or what a shell makes of <(...)."""
    return str(path) == "-" or path.is_fifo() or (not path.suffix and path.parts[:2] in (("/", "dev"), ("/", "proc")))


def is_archive(name: str | Path) -> bool:
    """Whether a file with this name is compressed as a whole."""
    return str(name).lower().endswith(ARCHIVES)
