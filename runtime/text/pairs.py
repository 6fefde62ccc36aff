# SPDX-License-Identifier: Apache-2.0
"""How rows of data sets spell pairs of texts, and where prompts stand in them."""

from __future__ import annotations

from collections.abc import Collection

from .apart import Text

SPELLINGS = (
    ("text", "text_pair"), ("query", "document"), ("query", "text"), ("query", "passage"), ("question", "answer"),
    ("question", "context"), ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_A", "sentence_B"),
    ("premise", "hypothesis"), ("text1", "text2"), ("text_1", "text_2"), ("text_a", "text_b"), ("anchor", "positive"),
)  # fmt: skip
"""Names of first and second texts; where a row has several, the one that comes first here counts."""
SPELLINGS_TEXT = ", ".join("/".join(names) for names in SPELLINGS[:3])


def add_prompt(text: Text, prompt: str) -> Text:
    """A text with a prompt in front; of a pair, the first has it, as in sentence-transformers."""
    return f"{prompt}{text}" if isinstance(text, str) else (f"{prompt}{text[0]}", text[1])


def prompt_advice(prompts: Collection[str]) -> str:
    """Which prompts a model has, and what to do where another one was named."""
    if not prompts:
        return "the model has no prompts; leave it out, or write the prompt into the texts"
    return f"the model's prompts are {', '.join(prompts)}; choose one of them"


def pair_names(names: Collection[str], first: str | None = None, second: str | None = None) -> tuple[str, str] | None:
    """The names of first and second texts among those of a row; None: it has no pair.

    `first` and `second` are what they must be called, if that is known.
    """
    return next(
        (
            (one, other)
            for one, other in SPELLINGS
            if one in names and other in names and first in (None, one) and second in (None, other)
        ),
        None,
    )
