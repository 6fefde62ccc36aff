# SPDX-License-Identifier: Apache-2.0
"""What the command lines of benchmarks have in common."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from padfree.builder.bench.environment import append_record, environment


def json_parser(
    text: str | None, appends: str = "one line per case", *, prog: str | None = None
) -> argparse.ArgumentParser:
    """A parser with a module's text as its description and the option --json; `appends` is what goes to its file."""
    parser = argparse.ArgumentParser(prog=prog, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help=f"append {appends} to this file")
    return parser


def keep(path: Path | None, record: Mapping[str, Any]) -> None:
    """Appends a record to the file of --json, if there is one, with the machine, the versions and the commit."""
    if path is not None:
        append_record(path, {**record, **_environment()})


_environment = cache(environment)
