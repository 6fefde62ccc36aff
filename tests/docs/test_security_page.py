# SPDX-License-Identifier: Apache-2.0
"""docs/reference/security.md: what it names exists, its limits are the program's, and what it calls data is not run."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import cli
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime.gpu import plugin_library
from padfree.runtime.triton.parameters import TokenizerParameters

from tests.hostile import __main__ as hostile
from tests.support.pages import page

PAGE = page("security").read_text("utf-8")


def test_options_and_variables_exist() -> None:
    named = set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {
        "--model-control-mode",
        "--version",
    }  # the former is Triton's, the latter every program's
    parsers = cli.make_parser()._subparsers
    assert parsers is not None
    choices: dict[str, Any] = parsers._group_actions[0].choices  # type: ignore[assignment]
    known = {option for parser in choices.values() for option in parser._option_string_actions}
    known |= set(hostile.make_parser()._option_string_actions)
    assert {"--data", "--torch-model", "--timing-cache"} <= named <= known
    assert plugin_library.ENVIRONMENT_VARIABLE in PAGE


def test_limits_are_the_programs() -> None:
    parameters = TokenizerParameters(max_length=8)
    for limit in (parameters.max_text_bytes, parameters.max_request_bytes):
        assert f"{limit:,} bytes" in PAGE or f"requests beyond {limit:,}" in PAGE


class Payload:
    """An object whose pickle runs code when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("command", ["run", "compare"])
def test_token_files_are_not_unpickled(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    mark, file = tmp_path / "mark", tmp_path / "tokens.npz"
    np.savez(file, input_ids=np.array([Payload(mark)], dtype=object), seq_lens=np.array([1]))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists()  # the payload works
    mark.unlink()
    model = DEMO_DATA / "bert_tiny.onnx"
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(model), "-o", str(packed), "--no-verify"]) == 0
    inputs = {
        "run": ["run", str(packed), "--input", str(file), "-o", str(tmp_path / "out.npz")],
        "compare": ["compare", str(model), str(packed), "--data", str(file)],
    }
    assert cli.main(inputs[command]) == 1
    assert "tokens.npz" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.slow
def test_a_file_beside_a_model_is_not_imported(tmp_path: Path) -> None:
    """The command starts in a folder whose files have the names of modules."""
    here, command = tmp_path / "here", tmp_path / "bin" / "padfree"
    for folder in (here, command.parent):
        folder.mkdir()
    for name in ("numpy", "onnx", "tensorrt", "padfree"):
        (here / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    command.write_text("import sys; from padfree.builder.cli import main; sys.exit(main())")  # as pip writes it
    for arguments in (["optimize", str(DEMO_DATA / "bert_tiny.onnx"), "-o", "packed.onnx"], ["doctor"]):
        done = subprocess.run(
            [sys.executable, str(command), *arguments], cwd=here, capture_output=True, text=True, check=False
        )
        assert "imported from the current folder" not in done.stdout + done.stderr
    assert (here / "packed.onnx").exists()
