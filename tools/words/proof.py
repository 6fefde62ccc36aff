# SPDX-License-Identifier: Apache-2.0
"""Proves that a change only renames: the code of a revision, renamed by the tables, is the code that is here.

It compares what Python and compilers see: syntax trees without docstrings, and tokens without comments. Strings count.
"""

from __future__ import annotations

import ast
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

from .cpp import SUFFIXES, code_of
from .table import ROOT, Rename

Apply = Callable[[Sequence[Rename], Path], object]


def differences(revision: str, tables: Sequence[Sequence[Rename]], apply: Apply, root: Path = ROOT) -> Iterator[str]:
    """A line for every file whose code differs, with the first difference.

    Args:
        revision: git revision from before the renaming.
        tables: what was renamed since then.
        apply: renames in a folder.
        root: the tree to compare with it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        archive = subprocess.run(["git", "archive", revision], cwd=root, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        for rows in tables:
            apply(rows, folder)
        listing = subprocess.run(["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True).stdout
        names = {name for name in listing.splitlines() if (root / name).is_file()}
        names |= {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        for name in sorted(names):
            if Path(name).suffix in (".py", *SUFFIXES):
                before, after = (_code(base / name) for base in (folder, root))
                if before != after:
                    yield f"{name}: {_first(before, after)}"


def _code(path: Path) -> list[str]:
    if not path.is_file():
        return []
    text = path.read_text("utf-8")
    return python_code(text) if path.suffix == ".py" else code_of(text)


def python_code(text: str) -> list[str]:
    """The syntax tree of a file, line by line, without docstrings and without the order of imports."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            statements = [item for item in body if not (isinstance(item, ast.Expr) and _is_text(item.value))]
            imports = [item for item in statements if isinstance(item, ast.Import | ast.ImportFrom)]
            for item in imports:
                item.names.sort(key=lambda alias: alias.name)
            others = [item for item in statements if not isinstance(item, ast.Import | ast.ImportFrom)]
            node.body = [*sorted(imports, key=ast.unparse), *others]  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            node.value = ast.List([ast.Constant(name) for name in sorted(ast.literal_eval(node.value))], ast.Load())
    return ast.unparse(tree).splitlines()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _first(before: list[str], after: list[str]) -> str:
    if not before or not after:
        return "is only here" if after else "is gone"
    for one, other in zip(before, after, strict=False):
        if one != other:
            return f"{one.strip()!r} became {other.strip()!r}"
    return f"{len(before)} pieces became {len(after)}"
