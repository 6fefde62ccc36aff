# SPDX-License-Identifier: Apache-2.0
"""In tests of these folders, whatever the command advises in its errors is compared with the parser."""

from __future__ import annotations

import sys
from typing import Any

import pytest

FOLDERS = ("tests/builder/cli/", "tests/builder/folders/", "tests/bulk/test_cli")


@pytest.fixture(autouse=True)
def advice_exists(request: pytest.FixtureRequest) -> None:
    """Options in a subcommand's error have to be its own, or those of the command that they are given with."""
    cli = sys.modules.get("padfree.builder.cli")
    if cli is not None and any(place in str(request.path) for place in FOLDERS):
        _listen(cli, request.getfixturevalue("monkeypatch"))


def _listen(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from .advice import parsers, problems

    make_parser, print_error = cli.make_parser, cli.print_error
    given: list[str] = []

    def noting() -> Any:
        parser = make_parser()
        parse = parser.parse_args

        def parse_args(words: Any = None) -> Any:
            given[:] = [str(word) for word in words or sys.argv[1:]]
            return parse(words)

        parser.parse_args = parse_args
        return parser

    def check(message: str) -> None:
        print_error(message)
        if given and given[0] in parsers():
            found = problems(message, given[0])
            assert not found, f"{message!r} of padfree {given[0]}: {found}"

    monkeypatch.setattr(cli, "make_parser", noting)
    monkeypatch.setattr(cli, "print_error", check)
