# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/popular-folders.md: what padfree makes of the folders in tests/fixtures/popular_folders.json.

python -m tests.builder.definitions.popular_table
"""

from __future__ import annotations

import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padfree.builder.definitions.errors import NotDefinedError
from padfree.builder.errors import BuildError

from tests.support.popular import FOLDERS, outcome

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "popular-folders.md"
PRE_NORM = frozenset({"EuroBERT", "Gemma 3", "Llama", "Mistral", "ModernBERT", "Qwen2", "Qwen3", "T5"})
"""Families whose sums grow from layer to layer: fp16 may not hold them."""
HEAD = """# Popular folders

This page says what padfree makes of fifty popular encoders on the Hugging Face Hub, without torch and without the code
in their repositories. It is for people who look for their model before they try it. `python -m
tests.builder.definitions.popular_table` writes it from `tests/fixtures/popular_folders.json`: folders with the entries
of the hub's `config.json` and its names of tensors, at tiny sizes with random weights. CI writes it again and compares.

- **becomes**: how much of the model is packed. "Packed entirely" means that nothing computes padding.
- **gives**: the outputs.
- **precision**: what to build. In families with `fp16 or bf16`, sums grow through all layers: `padfree build` without
  `--precision` looks at the model's own numbers and chooses.
- **class**: the speed class of the attention on Hopper. In every class, padfree's own GEMM kernels compute the linear
  layers of fp16 and bf16.
- **entries**: where the entries of `config.json` come from, because the hub could not be reached for this table.
  "Read": from a public copy, which the JSON file names. "Partly inferred", "mostly inferred": some or most from
  related models, from fine-tuned copies or from the defaults of the class. "Memory": as the author remembers them, with
  the names of tensors that transformers writes; no public copy was found. If your folder has an entry that padfree does
  not know, padfree names the entry and uses no definition.

| class | attention |
|---|---|
| A | full or causal, heads of up to 128 numbers: as BERT |
| B | windows, biases by distance, or wider heads: kernels of their own |
| C | DeBERTa's disentangled biases: kernels of their own |
| D | as A, but all experts are computed, and those that the router does not choose are multiplied by 0 |

Downloads are millions per month, as stored pages of the hub had them in late 2026; "-" where none was found.

| folder | downloads | family | becomes | gives | precision | class | entries |
|---|---|---|---|---|---|---|---|
"""


def row(entry: Mapping[str, Any]) -> str:
    """One folder's row of the table."""
    downloads = "-" if entry["downloads"] is None else f"{entry['downloads']:g}"
    with tempfile.TemporaryDirectory() as scratch:
        try:
            actual = outcome(entry, Path(scratch) / "model")
        except (NotDefinedError, BuildError):
            becomes = f"refused; {entry['remedy']}"
            return _line(entry["folder"], downloads, "-", becomes, "-", "-", "-", entry["source"])
    becomes = "packed entirely" if actual.is_complete else "packed in part"
    precision = "fp16 or bf16" if actual.family in PRE_NORM else "fp16"
    gives = ", ".join(f"`{name}`" for name in actual.gives)
    kind = "D" if actual.has_experts else actual.attention
    return _line(entry["folder"], downloads, actual.family, becomes, gives, precision, kind, entry["source"])


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def page() -> str:
    """The whole page."""
    rows = [row(entry) for entry in FOLDERS]
    packed = sum("| packed entirely |" in line for line in rows)
    unconfirmed = ", ".join(entry["folder"] for entry in FOLDERS if not entry["confirmed"])
    last = textwrap.fill(f"Not confirmed by any public copy: {unconfirmed}.", 120, break_on_hyphens=False)
    return f"{HEAD}{''.join(rows)}\n{packed} of {len(rows)} are packed entirely.\n\n{last}\n"


def main() -> None:
    """Writes the page, or with --check compares it."""
    text = page()
    if "--check" in sys.argv and PAGE.read_text("utf-8") != text:
        raise SystemExit(f"{PAGE}: out of date; run python -m tests.builder.definitions.popular_table")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
