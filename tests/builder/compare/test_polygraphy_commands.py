# SPDX-License-Identifier: Apache-2.0
"""The comparison through Polygraphy's own command line, with the files that --emit-polygraphy writes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from padfree.builder.cli import main
from padfree.builder.compare import saved
from padfree.onnx_tools import save_model
from padfree.onnx_tools.synthetic import bert_model

from tests.support.quantizers import Quantizer

from . import planted_errors


def run_commands(folder: Path) -> subprocess.CompletedProcess[str]:
    tools = Path(sys.executable).parent  # polygraphy is installed next to python
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": paths}
    command = ["sh", str(folder / "commands.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_polygraphy_run_finds_what_is_the_same_and_what_is_not(tmp_path: Path, interface: str) -> None:
    original = planted_errors.write_original(tmp_path / "original.onnx")
    model = planted_errors.write_rewritten(original, tmp_path / "model.onnx", interface=interface)
    folder = tmp_path / "polygraphy"
    options = ["--max-seq-len", "20", "--emit-polygraphy", str(folder)]
    assert main(["compare", str(original), str(model), *options]) == 0
    done = run_commands(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED | Runtime" in done.stdout
    planted_errors.write_rewritten(original, model, planted_errors.weight_of_layer_3, interface=interface)
    done = run_commands(folder)
    assert done.returncode == 1
    assert "worst: request" in done.stdout


@pytest.mark.slow
def test_polygraphy_agrees_on_a_quantised_file(tmp_path: Path) -> None:
    """Polygraphy gets a float file: its onnxruntime would multiply int8 weights in integers, with other results."""
    original, folder = tmp_path / "original.onnx", tmp_path / "polygraphy"
    save_model(Quantizer("int8", "stored").apply(bert_model(1, 64, 2, 128, 50, 32)), original)
    assert main(["compare", str(original), "--max-seq-len", "20", "--emit-polygraphy", str(folder)]) == 0
    done = run_commands(folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["bert/embeddings:0", "$(touch owned)", "a'b", "*"])
def test_names_of_inputs_are_words_of_the_shell(name: str) -> None:
    assert shlex.split(saved._shape(name, (1, 16))) == [f"{name}:[1,16]"]


def test_what_tensorrt_gets_has_plain_nodes(tmp_path: Path) -> None:
    original = planted_errors.write_original(tmp_path / "original.onnx")
    folder = tmp_path / "polygraphy"
    assert main(["compare", str(original), "--max-seq-len", "20", "--emit-polygraphy", str(folder)]) == 0
    model = onnx.load(folder / "for_tensorrt.onnx")
    assert not model.functions
    attention = next(node for node in model.graph.node if node.op_type == "PadfreeAttention")
    assert {item.name: item.i for item in attention.attribute}["max_seq_len"] == 20
    commands = (folder / "commands.sh").read_text()
    assert "--strongly-typed --plugins libpadfree_register.so" in commands
    assert "--trt-max-shapes 'input_ids:[160]'" in commands
