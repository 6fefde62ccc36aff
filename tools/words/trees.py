# SPDX-License-Identifier: Apache-2.0
"""A quick proof that a change only renames: both trees have the same form, and names differ as the tables say.

`--proof` applies tables again, which takes minutes. Here the syntax trees of both revisions are walked side by side:
the nodes must be the same, a differing name must be in a table, and no two names in a function or class may have become
one.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from .cpp import SUFFIXES, code_of
from .table import ROOT, Rename

Pairs = set[tuple[str, str]]


def differences(before: str, after: str, tables: Sequence[Sequence[Rename]], root: Path = ROOT) -> Iterator[str]:
    """A line for every difference that is not a renaming by the tables: the file, and what became what.

    Args:
        before: git revision from before the renaming.
        after: git revision from after it.
        tables: what was renamed between them.
        root: the repository.
    """
    rows = [row for table in tables for row in table]
    pairs = {(row.old, row.new) for row in rows if row.kind != "file"}
    new_paths = {row.old: row.new for row in rows if row.kind == "file"}
    for old, new in new_paths.items():
        pairs |= set(zip(Path(old).with_suffix("").parts, Path(new).with_suffix("").parts, strict=True))
        pairs.add((Path(old).name, Path(new).name))
    changed = _git(root, "diff", "--name-only", "--no-renames", before, after).splitlines()
    for name in sorted(changed):
        is_new = any(name == new or name.startswith(f"{new}/") for new in new_paths.values())
        if Path(name).suffix not in (".py", *SUFFIXES) or is_new:
            continue
        one, other = _text(root, before, name), _text(root, after, _new_path(name, new_paths))
        if one is None or other is None:
            yield f"{name}: {'is only in' if one is None else 'is not in'} {after}"
            continue
        changes = _of_python(one, other, pairs) if name.endswith(".py") else _of_tokens(one, other, pairs)
        yield from (f"{name}: {difference}" for difference in dict.fromkeys(changes))


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def _text(root: Path, revision: str, name: str) -> str | None:
    result = subprocess.run(
        ["git", "show", f"{revision}:{name}"], cwd=root, capture_output=True, text=True, check=False
    )
    return result.stdout if result.returncode == 0 else None


def _new_path(name: str, new_paths: dict[str, str]) -> str:
    for old, new in new_paths.items():
        if name == old or name.startswith(f"{old}/"):
            return new + name.removeprefix(old)
    return name


def _of_tokens(one: str, other: str, pairs: Pairs) -> list[str]:
    before, after = code_of(one), code_of(other)
    if len(before) != len(after):
        return [f"{len(before)} tokens became {len(after)}"]
    return [_describe(a, b) for a, b in zip(before, after, strict=True) if not _is_renamed(a, b, pairs)]


def _of_python(one: str, other: str, pairs: Pairs) -> list[str]:
    """Compares without docstrings; of imports, whose order depends on names, it compares only the number of names."""
    before, after = (ast.parse(text) for text in (one, other))
    counts = [sorted(len(node.names) for node in _imports(tree)) for tree in (before, after)]
    for tree in (before, after):
        _leave_out(tree)
    return list(_of_nodes(before, after, pairs)) or list(_find_merged(before, after)) or list(_of_imports(*counts))


def _imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _of_imports(before: list[int], after: list[int]) -> Iterator[str]:
    if sum(before) != sum(after):
        yield f"{sum(before)} imported names became {sum(after)}"


def _leave_out(tree: ast.Module) -> None:
    """Removes docstrings and imports, and the content of `__all__`."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not _is_left_out(item)]  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            node.value = ast.Constant(None)


def _is_left_out(item: ast.stmt) -> bool:
    if isinstance(item, ast.Import | ast.ImportFrom):
        return True
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _of_nodes(one: object, other: object, pairs: Pairs) -> Iterator[str]:
    """Differences between two trees that are not in the tables; nothing is compared below a difference in form."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for a, b in zip(one, other, strict=True):
            yield from _of_nodes(a, b, pairs)
    elif isinstance(one, ast.AST) and isinstance(other, ast.AST) and type(one) is type(other):
        for name in one._fields:
            if name not in ("ctx", "type_comment"):
                yield from _of_nodes(getattr(one, name), getattr(other, name), pairs)
    elif not _is_renamed(one, other, pairs):
        yield _describe(one, other)


def _is_renamed(one: object, other: object, pairs: Pairs) -> bool:
    """Whether two names or texts are the same except for names in the tables."""
    if one == other and type(one) is type(other):
        return True
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    words = [re.findall(r"\w+|\W", text) for text in (one, other)]
    same = len(words[0]) == len(words[1])
    return same and all(a == b or (a, b) in pairs for a, b in zip(*words, strict=True))


def _describe(one: object, other: object) -> str:
    """What became what; for two lists, the first parts that differ."""
    if isinstance(one, list) and isinstance(other, list):
        texts = [[_text_of(item) for item in items] for items in (one, other)]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
        firsts = [next(iter(items[same:]), "the end")[:60] for items in texts]
        return f"{len(one)} parts became {len(other)}: {firsts[0]!r} became {firsts[1]!r}"
    return f"{_text_of(one)[:60]!r} became {_text_of(other)[:60]!r}"


def _text_of(item: object) -> str:
    return ast.unparse(item) if isinstance(item, ast.AST) else str(item)


def _find_merged(before: ast.Module, after: ast.Module) -> Iterator[str]:
    """Names in one function, or attributes in one class, that have become the same."""
    for one, other in zip(ast.walk(before), ast.walk(after), strict=True):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            spellings = _spellings(one, other, (ast.Name, "id"), (ast.arg, "arg"))
        elif isinstance(one, ast.ClassDef):
            spellings = _spellings(one, other, (ast.Attribute, "attr"))
        else:
            continue
        for new, old in spellings.items():
            if len(old) > 1:
                yield f"{' and '.join(sorted(old))} of {one.name} became {new}"


def _spellings(one: ast.AST, other: ast.AST, *kinds: tuple[type[ast.AST], str]) -> dict[str, set[str]]:
    """Each new name -> the old names that it replaced."""
    results: dict[str, set[str]] = defaultdict(set)
    for a, b in zip(ast.walk(one), ast.walk(other), strict=True):
        for kind, field in kinds:
            if isinstance(a, kind) and not (isinstance(a, ast.Attribute) and not _is_self(a)):
                results[getattr(b, field)].add(getattr(a, field))
    return results


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"
