# SPDX-License-Identifier: Apache-2.0
"""Compares the commands and options that a text advises with the parser of the command."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache

from padfree.builder.cli import make_parser
from padfree.builder.cli.arguments import Parser

COMMAND = re.compile(r"\bpadfree ([a-z]+)\b((?: +(?!or\b|and\b|for\b|where\b)(?:-{1,2}[\w-]+|[^\s,;:`()]+))*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
OTHERS = re.compile(
    r"(?<![\w-])(?:pip|python3? -m|cmake|docker|tritonserver|optimum-cli|trtexec|polygraphy|cargo|apt|kubectl)\b[^;`]*"
)
"""Commands of other programs, up to where the sentence continues."""


@cache
def parsers() -> Mapping[str, Parser]:
    """Every subcommand's parser."""
    (action,) = (item for item in make_parser()._actions if isinstance(item, argparse._SubParsersAction))
    return dict(action.choices)


def options(subcommand: str) -> set[str]:
    """The options of a subcommand."""
    return set(parsers()[subcommand]._option_string_actions)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Finds the commands of padfree in a text: the subcommand and the words that follow."""
    for match in COMMAND.finditer(text):
        if match[1] in parsers():
            yield match[1], shlex.split(match[2].replace("'", ""))


def problems(text: str, subcommand: str | None = None) -> list[str]:
    """The advice in a text that does not work: unknown options, and commands that the parser refuses.

    Args:
        text: a message, or part of one.
        subcommand: the one that prints the text; options belong to it if the text names no other. None: any.
    """
    found: list[str] = []
    for name, words in commands(text):
        unknown = [word for word in words if word.startswith("--") and word not in options(name)]
        found += [f"padfree {name} has no {word}" for word in unknown]
        if words and not words[0].startswith("-") and ("-o" in words or name in ("inspect", "costs")):
            found += _refusals(name, words)
    rest = COMMAND.sub(" ", OTHERS.sub(" ", text))
    known = set().union(*map(options, parsers())) if subcommand is None else options(subcommand)
    found += [f"{subcommand or 'no command'}: {word}" for word in OPTION.findall(rest) if word not in known]
    return found


def _refusals(name: str, words: list[str]) -> list[str]:
    """The refusal of a whole command, if the parser does not take it."""
    try:
        parsers()[name].parse_args(words)
    except SystemExit:
        return [f"padfree {name} {' '.join(words)} is not taken"]
    return []
