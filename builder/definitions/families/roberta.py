# SPDX-License-Identifier: Apache-2.0
"""RoBERTa and XLM-RoBERTa: BERT whose positions begin after the padding id (arXiv 1907.11692, 1911.02116)."""

from __future__ import annotations

from ..graph import EncoderGraph
from ..heads import dense_classes, heads, masked_words
from ..keys import Keys
from ..layers import Linear, Norm, activation_of, add, counted_positions
from ..model import Definition, EncoderRows, Outputs, Writing
from . import bert

_VOCABULARY = {"roberta": 50265, "xlm-roberta": 30522, "camembert": 30522}
"""By model_type, the vocabulary's size where config.json does not say it."""


def encode(writing: Writing) -> EncoderRows:
    """Word, type and counted position embeddings, a norm, and BERT's layers."""
    keys, graph = writing.keys, writing.graph
    bert.check_keys(keys)
    vocabulary = _VOCABULARY[keys.raw["model_type"]]
    sizes = bert.sizes_of(keys)
    tensors = writing.tensors.below("", "roberta.", member="embeddings.word_embeddings.weight")
    with graph.scope("embeddings"):
        rows = keys.size("max_position_embeddings", default=512)
        table = tensors.take("embeddings.position_embeddings.weight", rows, sizes.width)
        where = counted_positions(graph, table, keys.size("pad_token_id", default=1, least=0))
        x = add(graph, *bert.word_and_type(writing, tensors, sizes.width, vocabulary), where)
        x = Norm.of(tensors, "embeddings.LayerNorm", sizes.width, sizes.epsilon).apply(graph, x)
    x = bert.layers(writing, tensors, x, sizes)
    tensors.ignore("position_ids", "pooler.", "lm_head.")
    return EncoderRows(x, sizes.width, tensors)


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    keys, width = writing.keys, encoded.width
    head = writing.tensors.below("lm_head.", member="dense.weight")
    dense = Linear.of(head, "dense", width, width)
    norm = Norm.of(head, "layer_norm", width, keys.number("layer_norm_eps", default=1e-12))
    vocabulary = _VOCABULARY[keys.raw["model_type"]]
    words = bert.tied_words(writing, encoded, head, vocabulary)
    return masked_words(writing, encoded, dense, activation_of("gelu"), norm, words)


def tanh(graph: EncoderGraph, x: str) -> str:
    """The activation of classifiers."""
    return graph.op("Tanh", x)


def _matches(keys: Keys, names: frozenset[str]) -> bool:
    is_fused = any("mixer.Wqkv" in name for name in names)  # of Jina's
    is_plain = keys.raw.get("position_embedding_type") != "rotary" and not is_fused
    return keys.raw.get("model_type") in _VOCABULARY and is_plain


ROBERTA = Definition(
    "RoBERTa",
    _matches,
    encode,
    bert.token_types,
    heads(dense_classes("classifier.dense", "classifier.out_proj", tanh), _mask_head),
)
