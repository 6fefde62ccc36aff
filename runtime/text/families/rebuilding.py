# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that a class of transformers builds from tokenizer.json's vocabulary and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from . import byte_level, merges, weights, word_pieces
from .components import Family, Frame, Settings, TokenizerJson

FAMILIES: Mapping[str, Family] = {
    **word_pieces.FAMILIES,
    **byte_level.FAMILIES,
    **weights.FAMILIES,
    **merges.FAMILIES,
}
"""By the names that `classes` gives them."""
_LEFT_OUT = ("normalizer", "pre_tokenizer", "post_processor", "padding", "truncation")


def rebuild(family: Family, settings: Settings, tokenizer_json: TokenizerJson) -> tuple[Tokenizer, Frame | None]:
    """The tokenizer, without added tokens and with nothing around texts, and what comes around them.

    Args:
        family: one that `tokenizer_json` fits.
        settings: the folder's.
        tokenizer_json: its tokenizer.json.
    """
    components = family.build(settings, tokenizer_json)
    content: dict[str, Any] = {
        **tokenizer_json.content,
        "model": components.model,
        "added_tokens": [],
        **dict.fromkeys(_LEFT_OUT),
    }
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if components.normalizer is not None:
        tokenizer.normalizer = components.normalizer
    if components.pre_tokenizer is not None:
        tokenizer.pre_tokenizer = components.pre_tokenizer
    return tokenizer, components.frame
