# SPDX-License-Identifier: Apache-2.0
"""What the command line shows of work under way: the stages of a rewrite or a build, unless --quiet."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from .console import error_console
from .options import say

if TYPE_CHECKING:
    from padfree.builder.engine.progress import StageProgress


def add_quiet_option(parser: argparse.ArgumentParser) -> None:
    """--quiet."""
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="show no progress and no remarks: results, warnings and errors only"
    )


def sayer(arguments: argparse.Namespace) -> Callable[[str], None]:
    """What tells the user what was chosen for them; nothing with --quiet."""
    return (lambda _line: None) if arguments.quiet else say


def stages(arguments: argparse.Namespace) -> StageProgress:
    """Shows the stages of the work: bars on a terminal, lines elsewhere, nothing with --quiet."""
    from padfree.builder.engine.progress import StageProgress

    return StageProgress(error_console(), say, quiet=arguments.quiet)
