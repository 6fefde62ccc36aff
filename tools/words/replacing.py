# SPDX-License-Identifier: Apache-2.0
"""Edits of one file: which names, strings and comments change, and how."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from .table import Rename


@dataclass
class Edits:
    """What changes, by the identity of nodes.

    Attributes:
        names: the new names.
        strings: patterns and their replacements, in order.
        comments: rows whose names comments may mention.
    """

    names: dict[int, str] = field(default_factory=dict)
    strings: dict[int, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    comments: list[Rename] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.names or self.strings)

    def rename(self, names: Iterable[cst.Name], new: str) -> None:
        """Gives these names the new spelling."""
        self.names |= {id(name): new for name in names}

    def mention(self, strings: Iterable[cst.SimpleString], row: Rename, *, whole: bool = False) -> None:
        """Renames where strings mention the name, or with `whole` wherever they contain it."""
        for item in strings:
            patterns = [(rf"\b{row.old}\b", row.new)] if whole else mention_patterns(row.old, row.new)
            if any(re.search(pattern, item.value, re.MULTILINE) for pattern, _ in patterns):
                self.strings[id(item)] += patterns

    def patch(self, strings: Iterable[cst.SimpleString], old: str, new: str) -> None:
        """Renames dotted names in strings, as tests use them for patching."""
        pattern = rf"(?<![\w.]){re.escape(old)}(?!\w)"
        for item in strings:
            if old in item.value:
                self.strings[id(item)].append((pattern, new))


def mention_patterns(old: str, new: str) -> list[tuple[str, str]]:
    """Patterns for a name in prose: in backticks, in lists of arguments, and anywhere if it is not a plain word."""
    patterns = [(rf"`{old}(?=[`.(\[ ])", f"`{new}"), (rf"^( +){old}:", rf"\1{new}:")]
    if not re.fullmatch(r"_?[A-Z]?[a-z]+", old):
        patterns.append((rf"(?<![\w/\"'.-]){old}(?![\w\"'-])(?!\.(?:py|md|cuh?|h)\b)", new))
    return patterns


def _substitute(text: str, patterns: Iterable[tuple[str, str]]) -> str:
    for pattern, new in patterns:
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    return text


class _Replacing(cst.CSTTransformer):
    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        self._comments = [pattern for row in edits.comments for pattern in mention_patterns(row.old, row.new)]

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """Replaces a name."""
        new = self._edits.names.get(id(original_node))
        return updated_node if new is None else updated_node.with_changes(value=new)

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        """Replaces names in a string."""
        patterns = self._edits.strings.get(id(original_node))
        if not patterns:
            return updated_node
        return updated_node.with_changes(value=_substitute(original_node.value, patterns))

    def leave_Comment(self, original_node: cst.Comment, updated_node: cst.Comment) -> cst.Comment:
        """Replaces names in a comment."""
        if not self._comments:
            return updated_node
        return updated_node.with_changes(value=_substitute(original_node.value, self._comments))


def replace_names(tree: cst.Module, edits: Edits) -> cst.Module:
    """The tree of a file with these edits."""
    return tree.visit(_Replacing(edits))
