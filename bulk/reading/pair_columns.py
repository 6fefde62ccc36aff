# SPDX-License-Identifier: Apache-2.0
"""How inputs spell pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pyarrow as pa
from padfree.contract.data_files import CSV, JSON_LINES, PARQUET
from padfree.runtime.text import pair_names
from pyarrow import parquet

from ..errors import BulkError
from .inputs import SourceFile, find
from .records import BOM, RecordError, csv_header, reader_of

USUAL = ("query", "text")


def pair_columns(sources: Sequence[str], query: str | None = None, document: str | None = None) -> tuple[str, str]:
    """The columns of first and second texts in the first of the inputs that has any; USUAL if those are not usual ones.

    Args:
        sources: the inputs.
        query: the column of first texts, if it is known.
        document: that of second texts, if it is known.

    Raises:
        BulkError: the inputs are not there, or cannot be read; or one column is known, and which the other
            is cannot be told, or it is the same.
    """
    if query is not None and document is not None:
        if query == document:
            raise BulkError(f"--query {query} and --document {document}: are one column; name two")
        return query, document
    names = next((columns for file in find(sources) if (columns := _names(file))), ())
    pair = pair_names(names, query, document)
    if pair is not None:
        return pair
    if query is None and document is None:
        return USUAL
    first, option = (f"--query {query}", "--document") if document is None else (f"--document {document}", "--query")
    raise BulkError(
        f"{first}: which column has the other texts is not clear from {', '.join(names[:20])}; name it with {option}"
    )


def _names(file: SourceFile) -> Sequence[str]:
    """Names of columns; of JSON lines those of the first object; none where the file has no rows."""
    if file.format == PARQUET:
        # Where it cannot be read, an error is raised when its rows are.
        with suppress(pa.ArrowInvalid, OSError), file.location.open() as stream:
            return list(parquet.read_schema(stream).names)
        return ()
    beginning = file.beginning()
    if file.format == CSV:
        return csv_header(beginning, file.location.shown_path)[0]
    if file.format == JSON_LINES:
        reader = reader_of(file.format, ())
        for line in beginning.removeprefix(BOM).split(b"\n"):
            with suppress(RecordError):
                return list(reader(line))
    return ()
