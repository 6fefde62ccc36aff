# SPDX-License-Identifier: Apache-2.0
"""The examples in C++ are short, fill the inputs that plans have, and give the answers of sessions.

tests/sanitizers compiles them if TensorRT's headers are there; with TensorRT and a GPU, PADFREE_RUN_PLAN names the
program run_plan, with `vectors` in the same folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from padfree.contract.names import INPUT_ROLES, PER_SEQUENCE
from padfree.onnx_tools import save_model
from padfree.runtime import Session
from padfree.runtime.gpu import plugin_library

from tests.support.folders import write_folder
from tests.support.sequence_models import with_rows

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "cpp"
MOST_LINES = {"main.cpp": 170, "vectors.cpp": 60}


def test_they_are_short() -> None:
    lines = {source.name: len(source.read_text("utf-8").splitlines()) for source in FOLDER.glob("*.cpp")}
    assert lines.keys() == MOST_LINES.keys()
    assert all(count < MOST_LINES[name] for name, count in lines.items())


def test_the_inputs_that_it_fills_are_those_of_plans() -> None:
    filled = set(re.findall(r'name == "(\w+)"', (FOLDER / "main.cpp").read_text("utf-8")))
    assert filled - {"input_ids"} == set(INPUT_ROLES) - {"tokens", "mask", "unread", PER_SEQUENCE}


def test_they_are_compiled_with_the_sanitized_build() -> None:
    script = (ROOT / "cmake" / "PadfreeSanitizers.cmake").read_text("utf-8")
    sources = list(FOLDER.glob("*.cpp"))
    assert len(sources) == 2
    assert all(f"examples/cpp/{source.name}" in script for source in sources)


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


@pytest.mark.gpu
def test_rows_of_sequences_are_arguments(tmp_path: Path) -> None:
    program = os.environ.get("PADFREE_RUN_PLAN")
    if not program:
        pytest.skip("PADFREE_RUN_PLAN names no program; build examples/cpp where TensorRT is")
    plan = tmp_path / "model.plan"
    save_model(with_rows(), tmp_path / "model.onnx")
    build = ["build", str(tmp_path / "model.onnx"), "-o", str(plan), "--max-batch", "8", "--no-verify"]
    subprocess.run([sys.executable, "-m", "padfree.builder.cli", *build], check=True, timeout=300)
    command = [sys.executable, str(FOLDER / "compare_with_session.py"), program, str(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vector: largest difference 0.0e+00" in done.stdout


@pytest.mark.gpu
def test_vectors_are_those_of_a_session(tmp_path: Path) -> None:
    program = os.environ.get("PADFREE_RUN_PLAN")
    if not program:
        pytest.skip("PADFREE_RUN_PLAN names no program; build examples/cpp where TensorRT is")
    folder, plan = (
        write_folder(tmp_path / "small", modules=[("Pooling", {"pooling_mode": "mean"})]),
        tmp_path / "s.plan",
    )
    build = ["build", str(folder), "-o", str(plan), "--max-batch", "8", "--no-verify"]
    subprocess.run([sys.executable, "-m", "padfree.builder.cli", *build], check=True, timeout=300)
    with Session(plan, cuda_graphs=False) as session:
        expected = session.run([[2, 60, 71, 3], [2, 3]])["sentence_embedding"]
    command = [str(Path(program).with_name("vectors")), str(plan), str(plugin_library.find()), "2,60,71,3", "2,3"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    results = [[float(word) for word in line.split()] for line in printed.splitlines()]
    assert results == [pytest.approx(row[:3].tolist(), rel=1e-4) for row in expected]
