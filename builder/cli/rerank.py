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
        help="scores of pairs of texts, on every GPU",
        description="Gives every pair of texts of parquet, JSON lines or CSV files a cross-encoder's score, or the "
        "scores of its classes. The result, and what happens when the command is ended, are as for padfree embed.",
    )
    add_options(parser)
    parser.add_argument("--query", default="query", metavar="COLUMN", help="column of first texts (default: query)")
    parser.add_argument("--document", default="text", metavar="COLUMN", help="column of second texts (default: text)")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    return run_job(arguments, (arguments.query, arguments.document), None)
