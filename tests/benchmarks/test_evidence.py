# SPDX-License-Identifier: Apache-2.0
"""A check depends on everything that it imports and everything that is compiled, and on nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.evidence import ROOT, cpp_code, digest, entries, imports_of, python_code, sources


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


@pytest.mark.slow
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


CODE = """
def half(value: int, *rest: int) -> str:
    return f"{value / 2:.{len(rest)}f} # no comment" "!"
"""
REMARKED = '''
"""What it is."""
# A remark.
def half(value: int,
         *rest: int) -> str:  # another
    """Says it."""
    return f"{value / 2:.{len(rest)}f} # no comment" "!"
'''


def test_comments_of_python_do_not_count() -> None:
    assert python_code(CODE) == python_code(REMARKED)
    assert python_code(CODE) != python_code(CODE.replace("# no", "no"))
    assert python_code(CODE) != python_code(CODE.replace("value / 2", "value / 3"))
    assert python_code("def f(): 1") != python_code("def g(): 1")


@pytest.mark.parametrize(
    ("code", "with_comments"),
    [
        ("int a = 1;\nint b;", "int a = 1;  // one\n\n/* two\nlines */\n  int b;"),
        ('f("// no comment", \'"\', "/*");', 'f("// no comment", \'"\', /* yes */ "/*");  // it\'s "one"'),
        ("x = 1'000'000 / y;\nz = 'a';", "x = 1'000'000 / y; // 1'000\\\n goes on\n z = 'a';"),
        ('t = R"(// "no" /* comment)";', 't = R"(// "no" /* comment)"; // "'),
    ],
)
def test_comments_of_cpp_do_not_count(code: str, with_comments: str) -> None:
    assert cpp_code(code) == cpp_code(with_comments)


@pytest.mark.parametrize(
    ("code", "other"),
    [
        ('f("// a");', 'f("// b");'),
        ("x = 1'000; s = \"it's // a\";", "x = 1'000; s = \"it's // b\";"),
        ("x = 1;", "// x = 1;"),
        ('s = "a b";', 's = "a  b";'),
        ('t = R"x(/* a */)x";', 't = R"x(/* b */)x";'),
        ("a / *b;", "a; /* *b;*/"),
    ],
)
def test_code_that_looks_like_comments_counts(code: str, other: str) -> None:
    assert cpp_code(code) != cpp_code(other)


@pytest.mark.slow
def test_fixtures_of_all_tests_count(monkeypatch: pytest.MonkeyPatch) -> None:
    named = (ROOT / "tests" / "conftest.py").read_text().partition("pytest_plugins = [")[2].partition("]")[0]
    plugins = [name.strip('" ') for name in named.split(",")]
    assert {f"{name.replace('.', '/')}.py" for name in plugins} < set(evidence.FIXTURES)
    test, benchmark = ("tests/kernels/test_rows.py",), ("-m", "benchmarks.bulk")
    before = [sources(test), sources(benchmark)]
    monkeypatch.setattr(evidence, "FIXTURES", ())
    after = [sources(test), sources(benchmark)]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_what_is_compiled_counts_for_every_check() -> None:
    assert {path.suffix for path in evidence.under(evidence.LIBRARY)} >= {".cu", ".cuh", ".h", ".cpp", ".cmake", ".txt"}
    assert len(sources(("-m", "benchmarks.scale"))) == 16
    assert sources(("-m", "benchmarks.scale")) != sources(("-m", "benchmarks.bulk"))
