# SPDX-License-Identifier: Apache-2.0
"""Every `padfree` command in the documentation is one that the command line takes, and every option is documented."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from padfree.builder import cli

from tests.builder import options_page
from tests.support.pages import page, pages

ROOT = Path(__file__).parents[2]
DOCUMENTS = [page(name) for name in ("cli", "cli-build")]


def documented_commands() -> list[str]:
    lines = [line for path in DOCUMENTS for line in path.read_text(encoding="utf-8").splitlines()]
    return [line.strip().partition(" #")[0] for line in lines if line.startswith("    padfree ")]


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_parse(command: str) -> None:
    assert cli.make_parser().parse_args(shlex.split(command)[1:]).function


def test_every_option_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in pages() if path != options_page.DOCUMENT)
    for module in cli.SUBCOMMANDS:
        cli.main([module.__name__.rpartition(".")[2], "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--output"}
    assert len(options) > 15
    assert not sorted(option for option in options if option not in text)


def test_the_page_of_all_options_is_the_parsers() -> None:
    assert options_page.DOCUMENT.read_text("utf-8") == options_page.render(), (
        "run: python -m tests.builder.options_page"
    )
