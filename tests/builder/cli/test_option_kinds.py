# SPDX-License-Identifier: Apache-2.0
"""Values of options that commas separate."""

from __future__ import annotations

import argparse

import pytest
from padfree.builder.cli.option_kinds import names_of, numbers_of, parts_of, seed
from padfree.builder.errors import BuildError


@pytest.mark.parametrize(
    ("text", "parts"),
    [(None, ()), ("yes", ("yes",)), (" yes , no", ("yes", "no")), ("a,,a,", ("a", "", "a", "")), ("", ("",))],
)
def test_parts(text: str | None, parts: tuple[str, ...]) -> None:
    assert parts_of(text) == parts


def test_names_are_known_and_count_once() -> None:
    read = names_of(("gpu", "tensorrt"), "part")
    assert read(" tensorrt,gpu,, tensorrt") == ("tensorrt", "gpu")
    with pytest.raises(argparse.ArgumentTypeError, match="unknown part cuda, allowed: gpu, tensorrt"):
        read("gpu, cuda")


def test_numbers() -> None:
    assert numbers_of("16, 64", int, "--lengths", "16,64,256") == [16, 64]
    with pytest.raises(BuildError, match="--lengths is '16,,64', allowed: whole numbers by commas; pass --lengths 16"):
        numbers_of("16,,64", int, "--lengths", "16,64,256")


def test_seeds_are_those_that_generators_take(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    seed(parser, "seed of lengths")
    assert (parser.parse_args([]).seed, parser.parse_args(["--seed", "7"]).seed) == (0, 7)
    for text in ("-1", "1.5", "x"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--seed", text])
        assert f"--seed: invalid seed '{text}', allowed: whole numbers from 0" in capsys.readouterr().err
