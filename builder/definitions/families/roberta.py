# SPDX-License-Identifier: Apache-2.0
"""RoBERTa and XLM-RoBERTa: BERT whose positions begin after the padding id (arXiv 1907.11692, 1911.02116)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..encoder import check_keys, embed, encoded_rows, encoder_tensors, sizes_of, token_types
from ..graph import EncoderGraph
from ..heads import dense_classes, heads, word_head
from ..keys import Keys
from ..layers import activation_of, counted_positions
from ..model import Definition, EncoderRows, WriteHead, Writing
from ..tensors import Weight
from . import bert

_VOCABULARY = {"roberta": 50265, "xlm-roberta": 30522, "camembert": 30522}
"""By model_type, the vocabulary's size where config.json does not say it."""
CLASSES = dense_classes("classifier.dense", "classifier.out_proj", activation_of("tanh"))


def encode(writing: Writing) -> EncoderRows:
    """Word, type and counted position embeddings, a norm, and BERT's layers."""
    keys, sizes = writing.keys, sizes_of(writing.keys)
    check_keys(keys)
    tensors = encoder_tensors(writing, "roberta.")
    vocabulary, positions = _VOCABULARY[keys.raw["model_type"]], positions_of(keys)
    x = embed(writing, tensors, sizes, vocabulary=vocabulary, positions=positions)
    layers = bert.layers(keys, tensors, sizes)
    return encoded_rows(writing, tensors, sizes, x, layers, ("position_ids", "pooler.", "lm_head."))


def positions_of(keys: Keys) -> Callable[[EncoderGraph, Weight], str]:
    """A function of the table of positions: its rows, counted from the padding id on."""
    return partial(counted_positions, padding=keys.size("pad_token_id", default=1, least=0))


def mask_head(vocabulary: int) -> WriteHead:
    """A score for every word, by a layer, GELU and a norm; `vocabulary` is the default of vocab_size."""
    return word_head("lm_head.", "dense", "layer_norm", vocabulary=vocabulary)


def _matches(keys: Keys, names: frozenset[str]) -> bool:
    is_fused = any("mixer.Wqkv" in name for name in names)  # of Jina's
    is_plain = keys.raw.get("position_embedding_type") != "rotary" and not is_fused
    return keys.raw.get("model_type") in _VOCABULARY and is_plain


ROBERTA = Definition(
    "RoBERTa",
    _matches,
    encode,
    token_types,
    heads(CLASSES, lambda writing, encoded: mask_head(_VOCABULARY[writing.keys.raw["model_type"]])(writing, encoded)),
    hides_tokens=True,
)
