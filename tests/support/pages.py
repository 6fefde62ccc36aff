# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation, in all folders below docs/."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTES = ROOT / "docs" / "notes"


def pages() -> list[Path]:
    """All pages of docs/ except the notes, in the order of their paths."""
    return [path for path in sorted((ROOT / "docs").rglob("*.md")) if NOTES not in path.parents]


def page(name: str) -> Path:
    """The one page of that name, such as "cli" for docs/reference/cli.md.

    Raises:
        LookupError: There is none, or there are several.
    """
    results = [path for path in pages() if path.stem == name]
    if len(results) != 1:
        raise LookupError(f"docs/ has {len(results)} pages named {name}.md")
    return results[0]


def text(*names: str) -> str:
    """The pages of these names, one after the other."""
    return "\n".join(page(name).read_text("utf-8") for name in names)
