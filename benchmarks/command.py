# SPDX-License-Identifier: Apache-2.0
"""What the command lines of benchmarks have in common."""

from __future__ import annotations

import argparse
from pathlib import Path


def json_parser(
    text: str | None, appends: str = "one line per case", *, prog: str | None = None
) -> argparse.ArgumentParser:
    """A parser with a module's text as its description and the option --json; `appends` is what goes to its file."""
    parser = argparse.ArgumentParser(prog=prog, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help=f"append {appends} to this file")
    return parser
