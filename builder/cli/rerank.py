# SPDX-License-Identifier: Apache-2.0
"""`padfree rerank`: scores of pairs of texts of whole data sets."""

from __future__ import annotations

import argparse
from typing import Any

from .bulk import add_options, run_job


def add_parser(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rerank",
        help="score pairs of texts of whole data sets, on every GPU",
        description="Scores the pairs of texts of parquet, JSON lines or CSV files with a cross-encoder: one score for "
        "each pair, or one for each class. The result is a folder of parquet files. After an interruption, the same "
        "command resumes, and no row appears twice.",
    )
    add_options(parser)
    usual = "default: as the inputs spell pairs, such as query and text, or text and text_pair"
    parser.add_argument("--query", metavar="COLUMN", help=f"column of first texts ({usual})")
    parser.add_argument("--document", metavar="COLUMN", help="column of second texts (default: likewise)")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    given_options = arguments.query, arguments.document
    columns = None if given_options == (None, None) else (given_options[0] or "query", given_options[1] or "text")
    return run_job(arguments, columns, None)
