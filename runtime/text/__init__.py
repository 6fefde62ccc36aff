# SPDX-License-Identifier: Apache-2.0
"""The one way from texts to a model's token inputs, which every door takes.

`tokenizer_file` reads a tokenizer.json with the tokenizer_config.json beside it, `encoder` makes ids and types of
texts, and `inputs` names the model's inputs that these fill.
"""

from .apart import Text, TextError, count_characters
from .checks import largest_id
from .encoder import EncodedTexts, TextEncoder
from .inputs import TextInputs, as_columns, column_count, of_columns
from .late import Query, in_role, kept_tokens
from .pairs import SPELLINGS_TEXT, add_prompt, pair_names, prompt_advice
from .source import text_source, tokenizer_path
from .tasks import ANSWERS, CLASSIFY, EMBED, RERANK, SPARSE, TAG, TOKENS, Choices, ServedModel, describe
from .tokenizer_file import TYPES, TokenizerFile, read_tokenizer_file

__all__ = [
    "ANSWERS",
    "CLASSIFY",
    "EMBED",
    "RERANK",
    "SPARSE",
    "SPELLINGS_TEXT",
    "TAG",
    "TOKENS",
    "TYPES",
    "Choices",
    "EncodedTexts",
    "Query",
    "ServedModel",
    "Text",
    "TextEncoder",
    "TextError",
    "TextInputs",
    "TokenizerFile",
    "add_prompt",
    "as_columns",
    "column_count",
    "count_characters",
    "describe",
    "in_role",
    "kept_tokens",
    "largest_id",
    "of_columns",
    "pair_names",
    "prompt_advice",
    "read_tokenizer_file",
    "text_source",
    "tokenizer_path",
]
