# SPDX-License-Identifier: Apache-2.0
"""What a check depends on: the files that its Python imports, and those that the plugin library is made of.

A check that has passed stays valid as long as these files are unchanged, whatever else is committed meanwhile. Comments
and docstrings do not count: Python files are compared by their syntax trees, C++ and CUDA without comments.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
FIXTURES = ("tests/conftest.py", "tests/support/running.py", "tests/support/advice_plugin.py")
"""What pytest loads for every test: the fixtures for all folders and the plugins that they name. Their imports count
where a test imports them too; otherwise every test would depend on the whole rewriter."""
LIBRARY = ("plugins", "cmake", "include", "CMakeLists.txt")
"""The sources of the compiled code."""
OWN = ("padfree", "tests", "benchmarks")
CPP = (".cpp", ".cu", ".cuh", ".h")
CPP_TOKEN = re.compile(
    r"""(?P<kept>R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"  # raw strings
    |"(?:\\.|[^"\\\n])*"
    |(?<!\w)\d(?:[\w.]|'(?=\w))*  # numbers, perhaps with apostrophes between their digits
    |'(?:\\.|[^'\\\n])*')
    |(?:\s|//(?:\\\n|[^\n])*|/\*.*?\*/)+""",
    re.DOTALL | re.VERBOSE,
)
INTEGRATIONS = ("sentence_transformers", "torch")  # where pyproject.toml puts them in padfree


def sources(command: Sequence[str]) -> str:
    """A digest of everything in this repository that a Python or pytest command depends on, 16 digits of SHA-256.

    Args:
        command: with `-m MODULE`, or with paths of test files and folders.
    """
    fixtures = FIXTURES if any(word.startswith("tests/") for word in command) else ()
    return digest([*imports_of(entries(command)), *under(fixtures), *under(LIBRARY)])


def entries(command: Sequence[str]) -> list[Path]:
    """The files of the repository that a command starts with, and the folders' conftest.py.

    Files in tests/ itself are left out: FIXTURES has those that count.
    """
    results: list[Path] = []
    for before, word in zip(["", *command], command, strict=False):
        if before == "-m" and word.split(".")[0] in OWN:
            module = _file(word)
            results += [module.parent / "__main__.py" if module.name == "__init__.py" else module] if module else []
        elif word.startswith("tests/"):
            path = ROOT / word
            results += [path] if path.is_file() else sorted(path.rglob("*.py"))
            results += [folder / "conftest.py" for folder in (path, *path.parents) if folder.is_relative_to(TESTS)]
    return [path for path in results if path.is_file() and path.parent != TESTS]


def imports_of(files: Iterable[Path]) -> set[Path]:
    """These files and all files of the repository that they import, directly or indirectly."""
    waiting, results = list(files), set[Path]()
    while waiting:
        path = waiting.pop()
        if path not in results:
            results.add(path)
            waiting += _imports(path)
    return results


def under(positions: Iterable[str]) -> list[Path]:
    """The given files, and all files in the given folders."""
    paths = [ROOT / location for location in positions]
    return [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]


def digest(files: Iterable[Path]) -> str:
    """16 digits of SHA-256 over names and contents without comments."""
    result = hashlib.sha256()
    for path in sorted(file for file in set(files) if "__pycache__" not in file.parts):
        result.update(f"{path.relative_to(ROOT)}\0{_content(path)}\0".encode())
    return result.hexdigest()[:16]


@functools.cache
def _content(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".py":
        content = python_code(content.decode()).encode()
    elif path.suffix in CPP:
        content = cpp_code(content.decode()).encode()
    return hashlib.sha256(content).hexdigest()


def python_code(text: str) -> str:
    """The syntax tree of a Python file without docstrings and positions, alike in all versions of Python."""
    return _syntax(ast.parse(text))


def cpp_code(text: str) -> str:
    """A C++ or CUDA file without comments; what stands between two words is one space or the end of a line."""
    return CPP_TOKEN.sub(lambda match: match["kept"] or ("\n" if "\n" in match[0] else " "), text).strip()


def _is_docstring(node: object) -> bool:
    """Whether a statement is only a string, which does nothing when it runs."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _syntax(value: object) -> str:
    """A node with its fields. Empty ones are left out: newer versions of Python have more of them, all empty."""
    if isinstance(value, ast.JoinedStr):  # Python 3.12.1 puts empty texts into nested ones
        parts = [part for part in value.values if not (isinstance(part, ast.Constant) and part.value == "")]
        return f"JoinedStr({_syntax(parts)})"
    if isinstance(value, ast.AST):
        fields = ((name, one) for name, one in ast.iter_fields(value) if one is not None and one != [])
        return f"{type(value).__name__}({', '.join(f'{name}={_syntax(one)}' for name, one in fields)})"
    if isinstance(value, list):
        return f"[{', '.join(_syntax(item) for item in value if not _is_docstring(item))}]"
    return repr(value)


@functools.cache
def _imports(path: Path) -> tuple[Path, ...]:
    """The repository's files that a file imports, along with the packages around them."""
    package = _name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]  # an imported name may be a module
    return tuple(dict.fromkeys(file for name in names for file in _files(name)))


def _files(name: str) -> Iterator[Path]:
    """The files of a module and of the packages around it."""
    parts = name.split(".")
    if parts[0] in OWN:
        for end in range(1, len(parts) + 1):
            if (file := _file(".".join(parts[:end]))) is not None:
                yield file


def _file(name: str) -> Path | None:
    """The file of a module in the repository; None if there is no such module."""
    first, *rest = name.split(".")
    if first == "padfree":
        rest = rest or ["package", "padfree"]
        rest = ["integrations", *rest] if rest[0] in INTEGRATIONS else rest
    else:
        rest = [first, *rest]
    path = ROOT.joinpath(*rest)
    result = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in result if rest and file.is_file()), None)


def _name(path: Path) -> str:
    """The module's name for a file."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "integrations":
        parts = parts[1:]
    elif parts[0] == "package":
        parts = parts[2:]
    elif parts[0] in ("tests", "benchmarks"):
        return ".".join(parts).removesuffix(".__init__")
    return ".".join(["padfree", *parts]).removesuffix(".__init__")
