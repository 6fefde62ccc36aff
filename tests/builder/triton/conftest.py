# SPDX-License-Identifier: Apache-2.0
"""A tokenizer for the tiny models of these tests, whose tables have 100 rows."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer.json of 98 tokens, which frames texts as BERT's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = [*special, *(f"word{number}" for number in range(94))]
    new_tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    new_tokenizer.add_special_tokens(special)
    new_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    new_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    new_tokenizer.save(str(folder / "tokenizer.json"))
    return folder
