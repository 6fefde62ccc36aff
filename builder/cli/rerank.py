# SPDX-License-Identifier: Apache-2.0
"""`padfree rerank`: scores of pairs of texts of whole data sets."""

from __future__ import annotations

import argparse

from .bulk import add_options, run_job
from .option_kinds import word

HELP = "score pairs of texts of whole data sets, on every GPU"
DESCRIPTION = (
    "Scores the pairs of texts of parquet, JSON lines or CSV files with a cross-encoder, or with a model that has a "
    "vector for every token: one score for each pair, or one for each class. The result is a folder of parquet files. "
    "After an interruption, the same command resumes, and no row appears twice."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    add_options(parser, "parquet, jsonl or csv")
    usual = "default: as the inputs spell pairs, such as query and text, or text and text_pair"
    word(parser, "--query", "COLUMN", f"column of first texts ({usual})")
    word(parser, "--document", "COLUMN", "column of second texts (default: likewise)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    return run_job(arguments, (arguments.query, arguments.document), None)
