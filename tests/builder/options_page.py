# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/options.md from the command line's own parser.

python -m tests.builder.options_page      writes it again
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from padfree.builder import cli

from tests.support.pages import ROOT

DOCUMENT = ROOT / "docs" / "reference" / "options.md"
HEAD = """# All options of the commands

This page lists every command of `padfree` with all its arguments, for people who look for one. It has the words of
`padfree COMMAND --help`; the [command line](cli.md) explains how the options work together. `python -m
tests.builder.options_page` writes this page from the parser, and a test compares them.
"""


def commands() -> dict[str, argparse.ArgumentParser]:
    """The commands' parsers, by name."""
    (action,) = (
        action
        for action in cli.make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )  # fmt: skip
    return dict(action.choices)


def cell(text: str) -> str:
    """Text for a table's cell, on one line, with `|` and `<` escaped."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def spelling(action: argparse.Action) -> str:
    """`-o FILE`, `--interface packed|padded`, or the name of an argument without dashes."""
    value = action.metavar
    if isinstance(value, tuple):
        value = " ".join(value)
    if action.choices is not None:
        value = "|".join(str(choice) for choice in action.choices)
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    takes = action.nargs != 0
    shown = [name if value is None or not takes else f"{name} {value}" for name in action.option_strings[-1:]]
    if takes and value is None:
        shown = [f"{action.option_strings[-1]} {action.dest.upper()}"]
    return ", ".join(f"`{name}`" for name in [*action.option_strings[:-1], *shown]).replace("|", "\\|")


def describe(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help, with its defaults filled in."""
    if action.help is None or action.help == argparse.SUPPRESS:
        return ""
    return cell(parser._get_formatter()._expand_help(action))


def rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A row for every argument except `--help`."""
    for group in parser._action_groups:
        for action in group._group_actions:
            if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
                yield f"| {spelling(action)} | {describe(parser, action)} |"


def first_sentence(text: str) -> str:
    """The first sentence of a command's description."""
    return re.split(r"(?<=\.)\s", " ".join(text.split()))[0].replace("<", "&lt;")


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, parser in commands().items():
        table = ["| argument | meaning |", "|---|---|", *rows(parser)]
        text = "\n".join(["", f"## {name}", "", first_sentence(parser.description or ""), ""])
        parts.append("\n".join([text, *(table if len(table) > 2 else [])]))
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    """Writes the page."""
    Path(DOCUMENT).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
