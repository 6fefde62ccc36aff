# SPDX-License-Identifier: Apache-2.0
"""A check depends on everything that it imports and everything that is compiled, and on nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.evidence import ROOT, digest, entries, imports_of, sources


def names(files: list[Path] | set[Path]) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_a_command_begins_with_files() -> None:
    assert names(entries(("python", "-m", "benchmarks.sweep", "--sets", "small"))) == {"benchmarks/sweep/__main__.py"}
    assert names(entries(("python", "-m", "benchmarks.scale"))) == {"benchmarks/scale/__main__.py"}
    kernel = entries(("python", "-m", "pytest", "-q", "tests/kernels/test_rows.py"))
    assert names(kernel) == {"tests/kernels/test_rows.py", "tests/kernels/conftest.py"}
    folder = names(entries(("python", "-m", "pytest", "tests/plugins")))
    assert folder >= {"tests/plugins/test_registry.py", "tests/plugins/test_signatures.py"}
    assert not any(name.startswith("tests/kernels") for name in folder)


def test_kernels_do_not_depend_on_the_rewriter_and_engines_do() -> None:
    kernels = names(imports_of(entries(("tests/kernels/test_rows.py",))))
    assert "tests/support/launchers.py" in kernels
    assert not any(name.startswith(("onnx_tools/", "builder/", "runtime/")) for name in kernels)
    engines = names(imports_of(entries(("tests/gpu/test_engine.py",))))
    assert engines >= {"onnx_tools/rewrite.py", "builder/engine/build.py", "runtime/session.py", "contract/names.py"}


@pytest.mark.parametrize("module", ["benchmarks.run_on_gpu", "tests.gpu.engine_matrix", "padfree.builder.cli"])
def test_nothing_is_missed_that_python_imports(module: str) -> None:
    """Everything that a fresh process loads is found in the source; the source may import more."""
    code = (
        f"import sys, {module}\n"
        "loaded = [name for name, one in sys.modules.items() if getattr(one, '__file__', None)]\n"
        "print(*(name for name in loaded if name.split('.')[0] in ('padfree', 'tests', 'benchmarks')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    file = evidence._file(module)
    assert file is not None
    results = {evidence._name(path) for path in imports_of([file])}
    loaded = set(done.stdout.split())
    assert len(loaded) > 5
    assert loaded <= results


def test_a_digest_follows_names_and_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    one, other = tmp_path / "one.cu", tmp_path / "other.cu"
    one.write_text("a")
    first = digest([one])
    one.rename(other)
    renamed = digest([other])
    (tmp_path / "__pycache__").mkdir()
    cached = tmp_path / "__pycache__" / "one.pyc"
    cached.write_text("x")
    assert first != renamed == digest([other, cached, other])
    other.write_text("b")
    evidence._content.cache_clear()
    assert digest([other]) != renamed


def test_what_is_compiled_counts_for_every_check() -> None:
    assert {path.suffix for path in evidence.under(evidence.LIBRARY)} >= {".cu", ".cuh", ".h", ".cpp", ".cmake", ".txt"}
    assert len(sources(("-m", "benchmarks.scale"))) == 16
    assert sources(("-m", "benchmarks.scale")) != sources(("-m", "benchmarks.bulk"))
