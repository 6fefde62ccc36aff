# SPDX-License-Identifier: Apache-2.0
"""How `pytest` runs: on all cores by default, in one process on request, and with a line for each reason to skip."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import skips, workers

ROOT = Path(__file__).resolve().parents[2]
FILES = workers.FEW_FILES + 2
MOST_TESTS = 10_000  # as many are collected only where nobody asks for some of them
SUITE = """
import os
from pathlib import Path

import pytest


@pytest.mark.parametrize("value", range(3))
def test_it(value):
    place = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    with Path("ran").open("a") as file:
        file.write(f"{Path(__file__).name} {place}\\n")


@pytest.mark.slow
def test_that_takes_long():
    Path("slow").touch()


def test_of_something_that_nobody_has():
    pytest.importorskip("starlette.that_nobody_has")
"""
MARKED = """
import os
import time
from pathlib import Path

import pytest


@pytest.mark.gpu
@pytest.mark.parametrize("value", range(4))
def test_that_is_alone(value):
    begin = time.monotonic()
    time.sleep(0.2)
    with Path("ran").open("a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {begin} {time.monotonic()}\\n")
"""
LEFT_OUT = """
import pytest

from tests.support.skips import LeftOut


def pytest_pycollect_makemodule(module_path, parent):
    return LeftOut.of(module_path, parent, "needs what nobody has: buy it")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name == "test_of_the_gpu.py":
            item.add_marker(pytest.mark.skip(reason="needs a GPU: buy one"))
"""
RUN = "import json, sys, pytest; print(*(int(pytest.main(given)) for given in json.loads(sys.argv[1])))"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with many small test files, which runs tests the way this project does."""
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(settings[settings.index("[tool.pytest") : settings.index("[tool.ruff]")])
    for name in (
        "tests/__init__.py",
        *(f"tests/support/{path.name}" for path in (ROOT / "tests/support").glob("*.py")),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "tests" / "conftest.py").write_text('pytest_plugins = ["tests.support.running"]\n')
    (tmp_path / "tests" / "gpu").mkdir()
    for number in range(FILES):
        (tmp_path / "tests" / f"test_{number}.py").write_text(SUITE)
    for number in range(2):
        (tmp_path / "tests" / "gpu" / f"test_gpu_{number}.py").write_text(SUITE)
    return tmp_path


def run(suite: Path, *requests: list[str]) -> tuple[str, dict[str, list[str]]]:
    """Runs pytest with each list of arguments; returns the output, and by file the processes that ran its tests."""
    environment = {**os.environ, "PYTEST_XDIST_AUTO_NUM_WORKERS": "2", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    command = [sys.executable, "-c", RUN, json.dumps(requests)]
    for name in [name for name in environment if name.startswith("PYTEST_XDIST_") and "NUM" not in name]:
        del environment[name]
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-len(requests) :] == ["0"] * len(requests), done.stdout + done.stderr
    positions: dict[str, list[str]] = defaultdict(list)
    for line in (suite / "ran").read_text().splitlines():
        file, _, worker = line.partition(" ")
        positions[file].append(worker)
    return done.stdout, positions


def test_it_takes_every_core_a_file_at_a_time(suite: Path) -> None:
    last = "test_with_most_tests.py"
    (suite / "tests" / last).write_text(SUITE.replace("range(3)", "range(20)").partition("@pytest.mark.slow")[0])
    shown, positions = run(suite, ["-q"])
    # In the order of the files: at most two parts, one of which has two files, are left to a process that is slower.
    assert last in list(positions)[-4:]
    assert len(positions.pop(last)) == 20
    assert len(positions) == FILES + 2
    assert all(len(ran) == 3 and len(set(ran)) == 1 for ran in positions.values())
    assert {worker for ran in positions.values() for worker in ran} == {"gw0", "gw1"}
    assert positions["test_gpu_0.py"] == positions["test_gpu_1.py"]  # in one process
    assert not (suite / "slow").exists()
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert f"{FILES + 2} {' '.join(['slow:', '`pytest', '--slow`', 'runs', 'it', 'too,', 'as', 'CI', 'does'])}" in lines
    assert f"{FILES + 2} needs starlette: pip install '.[serve]'" in lines
    assert "SKIPPED" not in shown


@pytest.mark.slow
def test_one_process_is_enough_or_wanted(suite: Path) -> None:
    cases = [
        ["-s"],
        ["--pdb"],
        ["-k", "it"],
        ["-m", "not gpu"],
        ["-n", "0"],
        ["-p", "no:xdist"],
        ["tests/test_0.py", "tests/gpu"],
        ["tests/test_0.py::test_it"],
    ]
    shown, positions = run(suite, *cases)
    assert {worker for ran in positions.values() for worker in ran} == {"alone"}
    assert len(positions["test_0.py"]) == 3 * len(cases)
    assert len(re.findall(r"\d+ passed", shown)) == len(cases)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_files_that_cannot_be_imported_are_counted(suite: Path, workers: str) -> None:
    folder = suite / "tests" / "left_out"
    folder.mkdir()
    (folder / "conftest.py").write_text(LEFT_OUT)
    for name in ("one", "two", "of_the_gpu"):
        (folder / f"test_{name}.py").write_text("import what_nobody_has")
    shown, _ = run(suite, ["-n", workers, "tests/left_out", "tests/test_0.py"])
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert {"2 needs what nobody has: buy it", "1 needs a GPU: buy one"} <= set(lines)


@pytest.mark.slow
def test_the_user_chooses_workers(suite: Path) -> None:
    _, positions = run(suite, ["-n", "2", "tests/test_0.py", "tests/test_1.py"])
    assert {worker for ran in positions.values() for worker in ran} == {"gw0", "gw1"}


@pytest.mark.slow
def test_on_the_gpu_one_test_runs_at_a_time(suite: Path) -> None:
    """This also holds for files in different folders, which different processes run."""
    for number in range(2):
        (suite / "tests" / f"test_{number}.py").write_text(MARKED)
    conftest = suite / "tests" / "conftest.py"
    there = "import tests.support.running\ntests.support.running._gpu_works = lambda: True\n"
    conftest.write_text(conftest.read_text() + there)
    run(suite, ["-n", "2", "tests/test_0.py", "tests/test_1.py"])
    lines = [line.split() for line in (suite / "ran").read_text().splitlines()]
    spans = sorted((float(begin), float(end), worker) for worker, begin, end in lines)
    assert len(spans) == 8
    assert {worker for *_, worker in spans} == {"gw0", "gw1"}
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(spans))


@pytest.mark.parametrize("given", [["--slow", "tests/test_0.py"], ["-m", "slow"], ["tests/test_0.py::test_that_takes"]])
def test_slow_tests_run_where_they_are_asked_for(suite: Path, given: list[str]) -> None:
    (suite / "ran").touch()
    name = given[-1].replace("test_that_takes", "test_that_takes_long")
    run(suite, [*given[:-1], name])
    assert (suite / "slow").exists()


def test_at_most_one_test_in_fifty_is_slow(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    if len(items) < MOST_TESTS:
        pytest.skip("needs all tests: pytest")
    assert len([item for item in items if item.get_closest_marker("slow")]) <= len(items) / 50


@pytest.mark.slow
def test_what_passed_is_not_run_again(suite: Path) -> None:
    run(suite, ["--note-passed", "passed", "tests/test_0.py"])
    noted = (suite / "passed").read_text().splitlines()
    assert noted == [f"tests/test_0.py::test_it[{value}]" for value in range(3)]
    _, positions = run(suite, ["--except-passed", "passed", "tests/test_0.py", "tests/test_1.py"])
    assert {file: len(ran) for file, ran in positions.items()} == {"test_0.py": 3, "test_1.py": 3}


def test_reasons_say_what_to_install() -> None:
    assert skips.without("json", "os") is None
    assert skips.without("json", "nobody.has_it") == "needs nobody.has_it: pip install nobody.has_it"
    assert skips.shown_reason("Skipped: could not import 'torch': No module named 'torch'") == (
        "needs torch: pip install '.[export]'"
    )
    own = "could not import 'padfree.serving': No module named 'uvicorn'"
    assert skips.shown_reason(own) == "needs uvicorn: pip install '.[serve]'"
    assert skips.summary(["a", "b", "a"]) == ["     2  a", "     1  b"]


def test_every_module_is_in_its_extra() -> None:
    """The extras name distributions, which differ from the modules in a few cases."""
    names = {
        "cuda": "cuda-python",
        "elftools": "pyelftools",
        "yaml": "pyyaml",
        "llama_index": "llama-index-embeddings-openai",
    }
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for module, extra in skips.EXTRAS.items():
        listed = re.search(rf"^{extra} = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
        assert listed is not None, extra
        name = names.get(module, module).replace("_", "[-_]")
        assert re.search(rf'^  "{name}(?![\w-])', listed.group(1), re.MULTILINE), f"{module} in {extra}"
