# SPDX-License-Identifier: Apache-2.0
"""Pages that walk contributors through their first change: the code on them is run, in the page's order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.native_headers import headers
from tests.support.pages import ROOT, text

PACKAGES = {
    "package/padfree": "padfree",
    **{name: f"padfree/{name}" for name in ("onnx_tools", "contract", "builder", "runtime")},
}
"""Folders of a checkout that rewriting needs, and their places in an installation."""


def test_the_first_pass() -> None:
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", text("first-pass"), re.MULTILINE | re.DOTALL))
    scope: dict[str, object] = {}
    exec(compile(source, "docs/contribute/first-pass.md", "exec"), scope)
    assert "double_negation" in scope


@dataclass(frozen=True)
class Edit:
    """Lines for a file of the checkout; `how` is "new", "before" or "after", the latter two relative to `anchor`."""

    file: str
    how: str
    anchor: str
    lines: str

    def apply(self, checkout: Path) -> None:
        """Changes the file, in which the anchor has to occur."""
        path = checkout / self.file
        if self.how == "new":
            assert not path.exists()
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.lines, encoding="utf-8")
            return
        before = path.read_text("utf-8")
        assert before.count(self.anchor) >= 1, f"{self.file} has no {self.anchor!r}"
        at, lines = before.rindex(self.anchor), self.lines
        if self.how == "before":
            at = before.rfind("\n", 0, at) + 1
        else:
            at, lines = at + len(self.anchor), f"\n{lines.rstrip()}"
        path.write_text(before[:at] + lines + before[at:], encoding="utf-8")


def edits(page: str) -> Iterator[Edit]:
    """The edits of a page, in its order."""
    for block in re.findall(r"^```(?:python|cpp|cuda)\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL):
        head, _, lines = block.partition("\n")
        found = re.fullmatch(r"(?:#|//) (\S+), (new|before: |after: )(.*)", head)
        if found is not None:
            yield Edit(found[1], found[2].rstrip(": "), found[3], lines)


def copy_with_edits(page: str, folder: Path) -> Path:
    """Copies the sources and makes the page's edits."""
    for name in (*PACKAGES, "plugins", "include"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in edits(page):
        edit.apply(folder)
    return folder


def run_program(page: str, checkout: Path) -> None:
    """Runs the page's program, with the edited sources as the installed package."""
    (program,) = re.findall(r"^```python\n# run\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)
    run(program, checkout)


def run(program: str, checkout: Path) -> None:
    """Runs a program, with the edited sources as the installed package."""
    installed = checkout / "installed"
    for folder, package in PACKAGES.items():
        shutil.copytree(checkout / folder, installed / package, dirs_exist_ok=True)
    program += f"import padfree.onnx_tools\nassert padfree.onnx_tools.__file__.startswith({str(installed)!r})\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The sources with the first plugin, and the header that is generated from its description."""
    sources = copy_with_edits("first-plugin", tmp_path)
    header = sources / "plugins" / "shell" / "schemas.h"
    run(
        "from pathlib import Path\nfrom tests.plugins.operator_schemas import render\n"
        f"Path({str(header)!r}).write_text(render())\n",
        sources,
    )
    return sources


def test_pages_have_edits_for_every_file() -> None:
    assert len(list(edits("first-plugin"))) == 8
    assert [edit.file.split("/")[-1] for edit in edits("family")] == ["plain.py", "__init__.py", "__init__.py"]


@pytest.mark.slow
def test_the_first_plugin_runs_in_onnxruntime(checkout: Path) -> None:
    run_program("first-plugin", checkout)
    assert "OperatorSchema scaleSchema()" in (checkout / "plugins" / "shell" / "schemas.h").read_text("utf-8")


@pytest.mark.slow
def test_the_new_family_agrees_with_numpy(tmp_path: Path) -> None:
    run_program("family", copy_with_edits("family", tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["scale/plugin.cpp", "shell/library.cpp", "no_device/launchers.cpp"])
def test_the_first_plugin_compiles(checkout: Path, source: str) -> None:
    """Checks as much as a C++ compiler can; the kernel needs nvcc."""
    compiler, folders = shutil.which("g++"), headers()
    if compiler is None or folders is None:
        pytest.skip("needs g++, TensorRT's and CUDA's headers: apt-get install g++ cargo && pip install '.[dev]'")
    includes = [flag for folder in (checkout / "plugins", checkout / "include") for flag in ("-I", str(folder))]
    includes += [flag for folder in folders for flag in ("-isystem", str(folder))]
    command = [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *includes]
    done = subprocess.run([*command, str(checkout / "plugins" / source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_the_kernel_of_the_first_plugin_compiles(checkout: Path) -> None:
    beside = [str(path.parent) for folder in sys.path for path in Path(folder).glob("nvidia/*/bin/nvcc")]
    compiler = shutil.which("nvcc", path=os.pathsep.join([os.environ["PATH"], *beside]))
    if compiler is None:
        pytest.skip("needs nvcc: pip install nvidia-cuda-nvcc")
    command = [compiler, "-std=c++17", "-arch=sm_80", "-I", str(checkout / "plugins"), "-c"]
    source = checkout / "plugins" / "scale" / "kernel.cu"
    done = subprocess.run([*command, str(source), "-o", str(checkout / "kernel.o")], check=False)
    assert done.returncode == 0
