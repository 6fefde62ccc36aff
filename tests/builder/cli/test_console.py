# SPDX-License-Identifier: Apache-2.0
"""Names of models, files and plugins reach the terminal as text: no escapes, no markup."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from padfree.builder import cli
from padfree.builder.cli import console, main
from rich.console import Console

EVIL = "\x1b]0;owned\x07\x1b[2J[red]\u202e\rx"
SHOWN = r"\x1b]0;owned\x07\x1b[2J[red]\u202e\rx"
ModelWriter = Callable[..., Path]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PADFREE_DEBUG", raising=False)
    yield
    logging.getLogger("padfree").handlers.clear()


def control_letters(text: str) -> list[str]:
    """Characters that a terminal would act on."""
    return [letter for letter in text if not letter.isprintable() and letter != "\n"]


@pytest.mark.parametrize(
    "show",
    [
        lambda: console.print_line(f"{EVIL} [/nothing]"),
        lambda: console.print_table(EVIL, ("name",), [(EVIL,)]),
        lambda: console.print_facts(EVIL, {EVIL: [EVIL]}),
    ],
)
def test_escapes_are_shown(show: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    show()
    written = capsys.readouterr().out
    assert SHOWN in written
    assert not control_letters(written)


def test_other_letters_stay() -> None:
    for text in ("Eingabe für Wörter: 名前", "two\nlines\tand a tab", "bert/embeddings:0"):
        assert console.visible(text) == text


def test_a_status_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with console.Working(Console(stderr=True, force_terminal=True), "reading [/x].onnx") as shown:
        shown.update(f"[bold] {EVIL}")
    assert "\x1b]0;owned" not in capsys.readouterr().err


def test_work_without_a_terminal_is_told_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, wanted in ((60.0, ["first"]), (0.0, ["first", "second"])):
        monkeypatch.setattr(console, "LINE_S", seconds)
        with console.Working(console.error_console(), "starting") as shown:
            shown.update("first")
            shown.update("second")
        assert capsys.readouterr().err.splitlines() == wanted


def test_log_messages(capsys: pytest.CaptureFixture[str]) -> None:
    cli._configure_logging(debug=False)
    logging.getLogger("padfree.builder").warning("plugin says %s", EVIL)
    error = capsys.readouterr().err
    assert SHOWN in error.replace("\n", "")
    assert not control_letters(error)


def test_a_message_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli._configure_logging(debug=False)
    for message in ("short", "a word " * 40 + "more"):
        logging.getLogger("padfree.builder").warning("%s", message)
        assert capsys.readouterr().err == f"{message}\n"
    cli._configure_logging(debug=True)
    logging.getLogger("padfree.builder").debug("seen")
    assert capsys.readouterr().err == "DEBUG seen\n"


def test_names_of_files_and_outputs(
    packed_model: ModelWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file whose metadata hold escapes: inspect shows them as text, or refuses the file by name."""
    path = packed_model()
    model = onnx.load(str(path))
    (entry,) = (item for item in model.metadata_props if item.key == "padfree")
    raw = json.loads(entry.value)
    raw["version"] = EVIL
    raw["coverage"]["passes"][0]["name"] = raw["coverage"]["islands"][0]["reason"] = EVIL
    entry.value = json.dumps(raw)
    evil_path = tmp_path / f"{EVIL}.onnx".replace("/", "")
    onnx.save_model(model, str(evil_path))
    assert main(["inspect", str(evil_path)]) == 0
    captured = capsys.readouterr()
    assert r"\x1b[2J" in captured.out
    assert not control_letters(captured.out + captured.err)
    raw["outputs"][0]["name"] = EVIL
    entry.value = json.dumps(raw)
    onnx.save_model(model, str(evil_path))
    assert main(["inspect", str(evil_path)]) == 1
    captured = capsys.readouterr()
    assert "outputs[0].name is '" in captured.err
    assert not control_letters(captured.out + captured.err)
    assert main(["run", f"{EVIL}.plan", "--input", "x.txt", "-o", str(tmp_path / "out.npz")]) == 1
    assert not control_letters(capsys.readouterr().err)


def test_facts_and_counts_read_as_words() -> None:
    facts = {"normalize": True, "strict": False, "activation": "", "labels": [], "count": 0, "similarity": None}
    shown = {name: console.short(value) for name, value in facts.items()}
    assert shown == {
        "normalize": "yes",
        "strict": "no",
        "activation": "-",
        "labels": "none",
        "count": "0",
        "similarity": "-",
    }
    assert [console.count_text(number, "text") for number in (0, 1, 2)] == ["0 texts", "1 text", "2 texts"]
