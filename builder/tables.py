# SPDX-License-Identifier: Apache-2.0
"""Rows of CSV and parquet files."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padfree.contract.installation import install_command
from padfree.contract.os_errors import not_readable

from .errors import BuildError

CSV, PARQUET = ".csv", ".parquet"
TABLES = (CSV, PARQUET)


def read_table(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a CSV file, whose first line names the columns, or of a parquet file.

    Raises:
        BuildError: the file cannot be read, or parquet is not installed.
    """
    return _of_csv(path) if path.suffix == CSV else _of_parquet(path)


def _of_csv(path: Path) -> list[Mapping[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise BuildError(
                        f"{path}, line {reader.line_num}: has other fields than the first line, "
                        f"{', '.join(reader.fieldnames or ())}; put texts with commas in quotes"
                    )
                rows.append(row)
            return list(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BuildError(f"{path}: {not_readable(error, 'pass a CSV file in UTF-8')}") from error


def _of_parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise BuildError(f"{path}: parquet files need pyarrow: {install_command('bulk')}") from error
    try:
        rows: list[Mapping[str, Any]] = parquet.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise BuildError(f"{path}: {not_readable(error, 'pass a parquet file')}") from error
    return rows
