# SPDX-License-Identifier: Apache-2.0
"""Rerankers whose model cards, not their folders, have the template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from padfree.contract.templates import DOCUMENT, QUERY, Piece, Template

_Q, _D = Piece(field=QUERY), Piece(field=DOCUMENT)
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
DEFAULT_INSTRUCTION = (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: "
)
BETWEEN = "\n<Document>: "
"""The user's message to Qwen3-Reranker: the text before the query, and between query and document."""
_BEGIN = "bos_token"
"""Stands for the tokenizer's first token."""


@dataclass(frozen=True)
class KnownScorer:
    """A reranker.

    Attributes:
        name: a part of its name, in lower case, as --template takes it.
        scores: the answer's token, and the one that it is compared with.
        template: the text around pairs.
        own_first: whether the folder's chat template counts before this one.
    """

    name: str
    scores: tuple[str, ...]
    template: Template
    own_first: bool = False

    def template_of(self, specials: Mapping[str, str]) -> Template:
        """The template with the tokenizer's own tokens, which are `specials` by their names in its settings."""
        parts = tuple(
            tuple(Piece(specials.get(_BEGIN, "")) if item.text == _BEGIN else item for item in part)
            for part in self.template.parts
        )
        return Template(tuple(part for part in parts if any(item.text or item.field for item in part)))


QWEN3 = KnownScorer(
    "qwen3-reranker",
    ("yes", "no"),
    Template(
        (
            (Piece(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"),),
            (Piece(DEFAULT_INSTRUCTION), _Q, Piece(BETWEEN), _D),
            (Piece("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),),
        )
    ),
    own_first=True,
)
GEMMA = KnownScorer(
    "bge-reranker-v2-gemma",
    ("Yes",),
    Template(
        (
            (Piece(_BEGIN),),
            (Piece("A: "), _Q),
            (Piece("\n"),),
            (Piece("B: "), _D),
            (Piece("\n"),),
            (
                Piece(
                    "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
                    "providing a prediction of either 'Yes' or 'No'."
                ),
            ),
        )
    ),
)
KNOWN_SCORERS: Mapping[str, KnownScorer] = MappingProxyType({item.name: item for item in (QWEN3, GEMMA)})


def known_scorer(path: Path, config: Mapping[str, Any]) -> KnownScorer | None:
    """The known reranker that a folder is, by its name, its repository's, or config.json."""
    names = [*path.resolve().parts[-3:], str(config.get("_name_or_path") or "")]
    return next((item for item in KNOWN_SCORERS.values() if any(item.name in name.lower() for name in names)), None)
