# SPDX-License-Identifier: Apache-2.0
"""Renames identifiers in C++ and CUDA: tokens, never text in strings; also in comments where they mean the name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .modules import Project
from .table import ROOT, Rename, TableError

SUFFIXES = (".cpp", ".cu", ".cuh", ".h")
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>\bR"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)")
    |(?P<include>(?<=\#include\ )(?:"[^"\n]*"|<[^>\n]*>))
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<number>\d(?:'?[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
OPENING, CLOSING = {"(": ")", "{": "}", "[": "]"}, {")", "}", "]"}


@dataclass
class Token:
    """A piece of a file; joined, the pieces are the file."""

    kind: str
    text: str


def tokens_of(source: str) -> list[Token]:
    """All tokens of a file."""
    tokens = []
    for match in TOKEN.finditer(source):
        kind = "raw" if match["raw"] else str(match.lastgroup)
        tokens.append(Token(kind, match.group()))
    return tokens


def code_of(source: str) -> list[str]:
    """What a compiler sees: the tokens without comments and space."""
    return [token.text for token in tokens_of(source) if token.kind not in ("comment", "space")]


def sources(path: str, root: Path = ROOT) -> list[Path]:
    """The file at the path, or the sources below the folder."""
    start = root / path
    if start.is_file():
        return [start]
    return sorted(item for item in start.rglob("*") if item.suffix in SUFFIXES)


def apply(row: Rename, project: Project) -> list[Path]:
    """Renames an identifier in the project's files; returns those that changed.

    Raises:
        TableError: nothing has the old name, or something has the new one already.
    """
    changed = []
    for path in sources(row.path, project.root):
        source = project.text(path)
        if not re.search(rf"\b{row.old}\b", source):
            continue
        tokens = tokens_of(source)
        ranges = list(definitions(tokens, row.within)) if row.within else [range(len(tokens))]
        names = [tokens[k] for part in ranges for k in part if tokens[k].kind == "name"]
        if not any(token.text == row.old for token in names):
            continue
        if any(token.text == row.new for token in names):
            raise TableError(f"{row}: {path.name} has a {row.new} already")
        for token in names:
            if token.text == row.old:
                token.text = row.new
        for k in (k for part in ranges for k in part if tokens[k].kind == "comment"):
            tokens[k].text = mention(tokens[k].text, row)
        project.replace_text(path, "".join(token.text for token in tokens))
        changed.append(path)
    if not changed:
        raise TableError(f"{row}: there is no {row.old}")
    return changed


def mention(comment: str, row: Rename) -> str:
    """A comment with the new name; an old name that is also an English word is replaced only where it is called."""
    is_word = re.fullmatch(r"[A-Z]?[a-z]+", row.old)
    pattern = rf"\b{row.old}(?=\()" if is_word else rf"\b{row.old}\b"
    return re.sub(pattern, row.new, comment)


def definitions(tokens: list[Token], name: str) -> Iterator[range]:
    """Functions and classes with a name, each from the name to the end of its body."""
    last = name.rsplit(".", 1)[-1]
    for k, token in enumerate(tokens):
        if token.kind == "name" and token.text == last:
            end = _end_of_body(tokens, k)
            if end is not None:
                yield range(k, end + 1)


def _end_of_body(tokens: list[Token], start: int) -> int | None:
    """Where the body in braces ends that follows a name and its parameters; None if there is no body."""
    depth, in_body = 0, False
    for k in range(start + 1, len(tokens)):
        text = tokens[k].text if tokens[k].kind == "other" else ""
        if text in OPENING:
            in_body = in_body or (text == "{" and depth == 0)
            depth += 1
        elif text in CLOSING:
            depth -= 1
            if depth < 0:
                return None
            if depth == 0 and in_body and text == "}":
                return k
        elif depth == 0 and text == ";":
            return None
    return None


def rename_includes(old: str, new: str, root: Path) -> list[Path]:
    """Changes includes of a file to its new path; returns the files that changed."""
    changed = []
    for folder in ("plugins", "include", "tests", "examples", "benchmarks"):
        for path in sources(folder, root):
            tokens = tokens_of(path.read_text("utf-8"))
            hits = [token for token in tokens if token.kind in ("include", "string") and _names(token, path, old, root)]
            for token in hits:
                before = token.text.strip('"')
                token.text = f'"{_spelling(before, old, new)}"'
            if hits:
                path.write_text("".join(token.text for token in tokens), "utf-8")
                changed.append(path)
    return changed


def _names(token: Token, path: Path, old: str, root: Path) -> bool:
    include_path = token.text.strip('"')
    if not include_path.endswith(Path(old).name):
        return False
    return any(
        (folder / include_path).resolve() == (root / old).resolve() for folder in (path.parent, root / "plugins")
    )


def _spelling(spelling: str, old: str, new: str) -> str:
    """The include of the new path: a plain name if the old one was, else relative to plugins/."""
    if "/" not in spelling and Path(old).parent == Path(new).parent:
        return Path(new).name
    return str(Path(new).relative_to("plugins")) if new.startswith("plugins/") else new
