# SPDX-License-Identifier: Apache-2.0
"""`padfree embed`: vectors of whole data sets."""

from __future__ import annotations

import argparse
from typing import Any

from .bulk import add_options, run_job


def add_parser(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "embed",
        help="make vectors of whole data sets, on every GPU",
        description="Makes a vector for every text of parquet, JSON lines, CSV or text files: dense, sparse, or per "
        "token, as the model does. The result is a folder of parquet files. After an interruption, the same command "
        "resumes, and no row appears twice.",
    )
    add_options(parser)
    parser.add_argument("--text", default="text", metavar="COLUMN", help="column of texts (default: text)")
    parser.add_argument("--prompt", metavar="NAME", help="name of one of the model's prompts, which is prepended")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    return run_job(arguments, (arguments.text,), arguments.prompt)
