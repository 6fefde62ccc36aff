# SPDX-License-Identifier: Apache-2.0
"""Rows of CSV and parquet files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from padfree.contract.data_files import CSV, kind_of, other_separator
from padfree.contract.installation import install_command
from padfree.contract.os_errors import not_readable

from .errors import BuildError


def read_table(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a CSV file, whose first line names the columns, or of a parquet file.

    Raises:
        BuildError: the file cannot be read, or parquet is not installed.
    """
    return _of_csv(path) if kind_of(path) == CSV else _of_parquet(path)


def _of_csv(path: Path) -> list[Mapping[str, Any]]:
    try:
        csv.field_size_limit(max(csv.field_size_limit(), path.stat().st_size))  # a field is no larger than its file
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names, rows = reader.fieldnames or (), []
            twice = next((name for name in names if names.count(name) > 1), None)
            if other := other_separator(names):
                raise BuildError(
                    f"{path}: the first line is one column, {names[0]!a}; separate columns with commas, not {other}"
                )
            if twice is not None:
                raise BuildError(f"{path}: the first line names the column '{twice}' twice; rename one of them")
            for row in reader:
                if None in row or None in row.values():
                    raise BuildError(
                        f"{path}, line {reader.line_num}: has other fields than the first line, "
                        f"{', '.join(names)}; put texts with commas in quotes"
                    )
                rows.append(row)
            return list(rows)
    except csv.Error as error:
        raise BuildError(f"{path}: not CSV ({error}); write double quotes within quoted fields twice") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: {not_readable(error, 'pass a CSV file in UTF-8')}") from error


def _of_parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise BuildError(f"{path}: parquet files need pyarrow: {install_command('bulk')}") from error
    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise BuildError(f"{path}: {not_readable(error, 'pass a parquet file')}") from error
    for at, column in enumerate(table.columns):
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            with suppress(pa.ArrowInvalid):  # no UTF-8, as images are, which nobody may ask for
                table = table.set_column(at, table.column_names[at], column.cast(pa.large_string()))
    rows: list[Mapping[str, Any]] = table.to_pylist()
    return rows
