# SPDX-License-Identifier: Apache-2.0
"""The kinds of options: switches, texts, files and numbers; the help of numbers names their defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from padfree.builder.errors import BuildError

ValueT = TypeVar("ValueT")
NumberT = TypeVar("NumberT", int, float)
Options = argparse._ActionsContainer
"""A parser, or a group of its options."""


def switch(options: Options, name: str, text: str) -> None:
    """An option without a value."""
    options.add_argument(name, action="store_true", help=text)


def word(options: Options, name: str, metavar: str, text: str, **others: Any) -> None:
    """An option whose value is taken as it is written."""
    options.add_argument(name, metavar=metavar, help=text, **others)


def file(options: Options, name: str, metavar: str, text: str) -> None:
    """An option that names a file or folder."""
    word(options, name, metavar, text, type=Path)


def integer(options: Options, name: str, metavar: str, text: str, default: int | None = None) -> None:
    """An option whose value is a whole number."""
    word(options, name, metavar, _with_default(text, default), type=int, default=default)


def seed(options: Options, text: str) -> None:
    """The option --seed, whose value generators of random numbers take: 0 or more."""
    word(options, "--seed", "N", f"{text} (default 0)", type=_seed, default=0)


def number(options: Options, name: str, metavar: str, text: str, default: float | None = None) -> None:
    """An option whose value is any number."""
    word(options, name, metavar, _with_default(text, default), type=float, default=default)


def parts_of(text: str | None) -> tuple[str, ...]:
    """What commas separate in the value of an option, without the blanks around it; nothing where none was given."""
    return () if text is None else tuple(part.strip() for part in text.split(","))


def names_of(choices: Sequence[str], what: str) -> Callable[[str], tuple[str, ...]]:
    """What reads an option's value: names separated by commas, all of them in `choices`; messages call one a `what`."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(name for name in dict.fromkeys(parts_of(text)) if name)
        unknown = [name for name in names if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {what} {', '.join(unknown)}, allowed: {', '.join(choices)}")
        return names

    return read


def numbers_of(text: str, kind: type[NumberT], option: str, example: str) -> list[NumberT]:
    """The numbers of one kind, separated by commas, that the value of an option is; BuildError where it is none."""
    try:
        return [kind(part) for part in parts_of(text)]
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise BuildError(f"{option} is {text!r}, allowed: {what} by commas; pass {option} {example}") from error


def value_of(kind: type[ValueT], arguments: argparse.Namespace, **others: Any) -> ValueT:
    """A dataclass whose fields are the values of the options with the same names, unless `others` gives them."""
    options = {item.name: getattr(arguments, item.name) for item in fields(kind) if hasattr(arguments, item.name)}  # type: ignore[arg-type]
    return kind(**{**options, **others})


def _with_default(text: str, default: float | None) -> str:
    return text if default is None or "(default" in text else f"{text} (default {default:.12g})"


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"invalid seed {text!r}, allowed: whole numbers from 0, such as 7")
    return int(text)
