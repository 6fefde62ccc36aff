# SPDX-License-Identifier: Apache-2.0
"""Options of other tools and misspelt options are answered with options that exist."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from padfree.builder.cli import main, make_parser
from padfree.builder.cli.arguments import COMMANDS, MAKING, MODEL, SIMILAR_OPTIONS, Parser

BERT = Path(__file__).resolve().parents[3] / "builder" / "demo" / "data" / "bert_tiny.onnx"
Capture = pytest.CaptureFixture[str]


def commands() -> dict[str, Parser]:
    """Every subcommand's parser."""
    actions = [item for item in make_parser()._actions if isinstance(item, argparse._SubParsersAction)]
    return dict(actions[0].choices)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("embed m.plan --input a -o b --batch-size 3", "--batch-size; did you mean --max-batch?"),
        ("bench m.onnx --batch-size 3", "--batch-size; did you mean --batch?"),
        ("run m.plan --input a -o b --batch-size 3", "--batch-size; this command forms its batches by tokens itself"),
        ("build m.onnx -o b.plan --max_batch_size 3", "--max_batch_size; did you mean --max-batch?"),
        ("doctor --model-id x", "unrecognized arguments: --model-id x"),
        ("build m.onnx -o b.plan --dtype fp16", "--dtype; did you mean --precision?"),
        ("build m.onnx -o b.plan --fp16", "--fp16; did you mean --precision?"),
        ("optimize --model-id x -o b.onnx", "--model-id; did you mean the model, which stands first?"),
        ("serve --model-id=x", "--model-id; did you mean the model, which stands first?"),
        ("run m.plan --inptu x -o y", "--inptu; did you mean --input?"),
    ],
)
def test_answers(given: str, answer: str, capsys: Capture) -> None:
    assert main(given.split()) == 2
    assert answer in capsys.readouterr().err


def test_what_is_ours_stays_ours() -> None:
    """embed's --dtype is that of the result; options may be abbreviated, and words after -- are not options."""
    words = ["embed", "m.plan", "--input", "a", "-o", "b", "--dtype", "float16", "--max-tok", "9"]
    arguments = make_parser().parse_args(words)
    assert (arguments.dtype, arguments.max_tokens) == ("float16", 9)
    assert str(make_parser().parse_args(["inspect", "--", "--model-id"]).model) == "--model-id"


@pytest.mark.parametrize("option", SIMILAR_OPTIONS)
def test_answers_exist(option: str) -> None:
    results = {name: parser.ours(option) for name, parser in commands().items()}
    for name, answer in results.items():
        assert answer in (None, MODEL, *commands()[name]._option_string_actions), name
    assert set(SIMILAR_OPTIONS[option]) & {answer for answer in results.values() if answer is not None}


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("optimze m -o b.onnx", "unknown subcommand 'optimze'; did you mean optimize?"),
        ("encode m --input a -o b", "unknown subcommand 'encode'; did you mean embed?"),
        ("xyz", "unknown subcommand 'xyz'; allowed: optimize, build, run"),
        ("run m.plan --text a -o b.npz --dtype fp16", "--dtype; the model is taken as it was made: padfree optimize"),
        ("embed m.plan --input a -o b --pooling cls", "padfree optimize --pooling, or padfree build --pooling, makes"),
        ("run m.plan --text a -o b.npz --beam 3", "unrecognized arguments: --beam 3; remove them"),
    ],
)
def test_what_is_no_option_or_command_here(given: str, answer: str, capsys: Capture) -> None:
    assert main(given.split()) == 2
    assert answer in capsys.readouterr().err


def test_other_tools_names_of_commands_are_commands() -> None:
    assert set(COMMANDS.values()) <= set(commands())
    assert not set(COMMANDS) & set(commands())


@pytest.mark.parametrize("command", ["optimize", "build"])
@pytest.mark.parametrize("option", MAKING)
def test_how_a_model_is_made_is_said_to_those_that_make_it(command: str, option: str) -> None:
    assert option in commands()[command]._option_string_actions


def test_files_are_named_for_what_is_in_them(tmp_path: Path, capsys: Capture) -> None:
    """A session tells plans and .onnx files apart by their names; the file would be refused a step later."""
    for command, given, named in (("optimize", "m.plan", "m.onnx"), ("build", "m.onnx", "m.plan")):
        assert main([command, str(BERT), "-o", str(tmp_path / given)]) == 1
        assert f"name it {named}, or make" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
