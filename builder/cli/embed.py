# SPDX-License-Identifier: Apache-2.0
"""`padfree embed`: vectors of whole data sets."""

from __future__ import annotations

import argparse

from .bulk import add_options, run_job
from .option_kinds import word

HELP = "make vectors of whole data sets, on every GPU"
DESCRIPTION = (
    "Makes a vector for every text of parquet, JSON lines, CSV or text files: dense, sparse, or per "
    "token, as the model does. The result is a folder of parquet files. After an interruption, the same command "
    "resumes, and no row appears twice."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    add_options(parser, "parquet, jsonl, csv or txt")
    word(parser, "--text", "COLUMN", "column of texts (default: text)", default="text")
    word(parser, "--prompt", "NAME", "name of one of the model's prompts, which is prepended")


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    return run_job(arguments, (arguments.text,), arguments.prompt)
