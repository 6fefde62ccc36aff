# SPDX-License-Identifier: Apache-2.0
"""`padfree serve` also takes every argument from the environment; the command line wins, and errors name variables."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli

from tests.support.pages import page
from tests.support.served_models import write_embedder

KEY = "a-secret"


def actions() -> list[argparse.Action]:
    parsers = cli.make_parser()._subparsers
    assert parsers is not None
    choices: dict[str, Any] = parsers._group_actions[0].choices  # type: ignore[assignment]
    return [action for action in choices["serve"]._actions if action.dest != "help"]


def variable(action: argparse.Action) -> str:
    return f"PADFREE_{action.dest.upper()}"


def parse(*words: str) -> dict[str, Any]:
    return vars(cli.make_parser().parse_args(["serve", *words]))


VALUES = {"task": "rerank", "long_texts": "refuse", "device": "3", "gpus": "0,1", "api_key": KEY}


@pytest.mark.parametrize("action", actions(), ids=variable)
def test_a_variable_is_as_good_as_the_option(action: argparse.Action, monkeypatch: pytest.MonkeyPatch) -> None:
    is_switch = action.nargs == 0
    value = "yes" if is_switch else VALUES.get(action.dest, "7")
    words = [] if action.dest == "model" else ["model.plan"]
    option = [value] if not action.option_strings else [action.option_strings[-1], *([] if is_switch else [value])]
    by_default, by_option = parse("model.plan"), parse(*words, *option)
    del by_default["from_environment"]
    monkeypatch.setenv(variable(action), value)
    by_variable = parse(*words)
    assert by_variable.pop("from_environment") == {action.dest: variable(action)}
    assert by_option.pop("from_environment") == {}
    assert by_variable == by_option
    assert action.dest == "model" or by_variable != by_default


@pytest.mark.parametrize("action", actions(), ids=variable)
def test_help_names_the_variable(action: argparse.Action) -> None:
    assert f"[{variable(action)}]" in str(action.help)


def test_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PORT", "81"), ("MODEL", "other.plan"), ("LONG_TEXTS", "refuse"), ("GPUS", "all")):
        monkeypatch.setenv(f"PADFREE_{name}", value)
    actual = parse("model.plan", "--port", "80", "--long-texts", "truncate", "--device", "2")
    assert [actual[name] for name in ("model", "port", "long_texts", "device", "gpus")] == [
        Path("model.plan"),
        80,
        "truncate",
        2,
        None,
    ]


def test_keys_of_both_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADFREE_API_KEY", KEY)
    assert set(parse("model.plan", "--api-key", "another")["api_key"]) == {KEY, "another"}
    assert set(parse("model.plan")["api_key"]) == {KEY}


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADFREE_PORT", "")
    assert parse("model.plan")["port"] == 8080


def test_other_commands_take_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADFREE_OUTPUT", "elsewhere")
    monkeypatch.setenv("PADFREE_DEVICE", "many")
    assert cli.make_parser().parse_args(["run", "model.plan", "--text", "a", "-o", "here.npz"]).output == Path(
        "here.npz"
    )


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PORT": "tcp://10.0.0.1:80"}, ["PADFREE_PORT: invalid int value", "enableServiceLinks: false"]),
        ({"PORT": "many"}, ["PADFREE_PORT: invalid int value: 'many'", "unset it"]),
        ({"LONG_TEXTS": "cut"}, ["PADFREE_LONG_TEXTS: invalid choice: 'cut'", "truncate"]),
        ({"CUDA_GRAPHS": "maybe"}, ["PADFREE_CUDA_GRAPHS is 'maybe'", "true"]),
        ({"DEVICE": "1", "GPUS": "all"}, ["PADFREE_DEVICE and PADFREE_GPUS", "unset one"]),
    ],
)
def test_a_value_that_is_none_is_refused_by_the_variable_s_name(
    variables: dict[str, str], said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"PADFREE_{name}", value)
    assert cli.main(["serve", "model.plan"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert all(part in message for part in said), message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORT", "70000", "--port 70000: allowed: 1 to 65535"),
        ("MAX_TEXTS", "0", "--max-texts is 0"),
        ("REQUEST_SECONDS", "-1", "--request-seconds is -1.0"),
        ("PROCESSES", "0", "--processes 0: allowed: 1 or more"),
        ("TASK", "rerank", "--task rerank"),
        ("MAX_LENGTH", "1000", "--max-length 1000"),
        ("DEFAULT_PROMPT", "other", "--default-prompt other"),
    ],
)
def test_what_is_wrong_later_names_the_variable_too(
    name: str,
    value: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("starlette")
    model = write_embedder(tmp_path / "embedder.onnx")
    monkeypatch.setenv(f"PADFREE_{name}", value)
    assert cli.main(["serve", str(model), *([] if name == "PORT" else ["--port", "0"])]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert said in message
    assert re.search(rf"\(--[\w-]+ is from PADFREE_{name}\)$", message), message


def test_an_error_does_not_show_a_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("starlette")
    monkeypatch.setenv("PADFREE_API_KEY", "grün-geheim")
    assert cli.main(["serve", "model.plan"]) == 1
    message = capsys.readouterr().err
    assert "API key" in message
    assert "geheim" not in message


def test_the_page_has_every_option_with_its_variable() -> None:
    text = page("serve").read_text("utf-8").partition("## Settings")[2].partition("## The start")[0]
    table = [line for line in text.splitlines() if line.startswith("| `")]
    rows = {name: row for row in table for name in re.findall(r"`(--[\w-]+|MODEL)`", row.split("|")[1])}
    wanted = {action.option_strings[-1] if action.option_strings else "MODEL": action for action in actions()}
    assert set(rows) == set(wanted)
    for name, action in wanted.items():
        assert f"`{variable(action)}`" in rows[name]
    assert set(re.findall(r"PADFREE_[A-Z_]+", text)) - {"PADFREE_"} == set(map(variable, actions()))
