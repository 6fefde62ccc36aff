# SPDX-License-Identifier: Apache-2.0
"""The example of C++: its project configures, and its comparison speaks of inputs that sessions have.

tests/sanitizers compiles it, where TensorRT's headers are; with TensorRT and a GPU, PADFREE_RUN_PLAN names the program.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from padfree.contract.names import INPUT_ROLES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "cpp"
MOST_LINES = 150


def test_it_is_one_short_file() -> None:
    assert len((FOLDER / "main.cpp").read_text("utf-8").splitlines()) < MOST_LINES


def test_the_inputs_that_it_fills_are_those_of_plans() -> None:
    filled = set(re.findall(r'name == "(\w+)"', (FOLDER / "main.cpp").read_text("utf-8")))
    assert filled - {"input_ids"} == set(INPUT_ROLES) - {"tokens", "mask", "unread"}


def test_it_is_compiled_with_the_sanitized_build() -> None:
    script = (ROOT / "cmake" / "PadfreeSanitizers.cmake").read_text("utf-8")
    assert "examples/cpp/main.cpp" in script


@pytest.mark.gpu
@pytest.mark.parametrize("interface", ["packed", "varseqlen"])
def test_a_plan_gives_what_a_session_gives(interface: str, tmp_path: Path) -> None:
    program = os.environ.get("PADFREE_RUN_PLAN")
    if not program:
        pytest.skip("PADFREE_RUN_PLAN names no program; build examples/cpp where TensorRT is")
    model, plan = ROOT / "tests/fixtures/families/bert_dynamo_eager.onnx", tmp_path / "model.plan"
    build = ["build", str(model), "-o", str(plan), "--interface", interface, "--max-batch", "8", "--no-verify"]
    subprocess.run([sys.executable, "-m", "padfree.builder.cli", *build], check=True, timeout=300)
    command = [sys.executable, str(FOLDER / "compare_with_session.py"), program, str(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "last_hidden_state: largest difference 0.0e+00" in done.stdout
