# SPDX-License-Identifier: Apache-2.0
"""BERT: layers whose norms follow the sums, positions and token types by tables (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Iterator

from ..attention import Projections
from ..blocks import LayerSizes, PostNormLayer, layers_of, plain_layer
from ..encoder import check_keys, embed, encoded_rows, encoder_tensors, sizes_of, token_types
from ..heads import heads, pooled_classes, word_head
from ..keys import Keys
from ..layers import position_rows
from ..model import Definition, EncoderRows, Writing
from ..tensors import Tensors


def encode(writing: Writing) -> EncoderRows:
    """Word, type and position embeddings, a norm, and the layers."""
    keys = writing.keys
    check_keys(keys)
    sizes = sizes_of(keys)
    tensors = encoder_tensors(writing, "bert.")
    x = embed(writing, tensors, sizes, positions=position_rows)
    leftovers = ("position_ids", "pooler.", "cls.seq_relationship", "cls.predictions")
    return encoded_rows(writing, tensors, sizes, x, layers(keys, tensors, sizes), leftovers)


def layers(keys: Keys, tensors: Tensors, sizes: LayerSizes) -> Iterator[PostNormLayer]:
    """BERT's layers."""
    return layers_of(
        tensors,
        "encoder.layer",
        "attention.self.query.weight",
        keys.size("num_hidden_layers", default=12),
        lambda parts: layer(parts, sizes, projections(parts, sizes.width)),
    )


def layer(parts: Tensors, sizes: LayerSizes, attention: Projections) -> PostNormLayer:
    """A layer with this attention."""
    return plain_layer(
        parts,
        sizes,
        attention,
        ("intermediate.dense", "output.dense"),
        ("attention.output.LayerNorm", "output.LayerNorm"),
    )


def projections(parts: Tensors, width: int) -> Projections:
    """The linear layers of an attention."""
    names = ("self.query", "self.key", "self.value", "output.dense")
    return Projections.of(parts, (f"attention.{name}" for name in names), width)


def _matches(keys: Keys, _names: frozenset[str]) -> bool:
    return keys.raw.get("model_type") == "bert" and keys.raw.get("position_embedding_type") != "alibi"


_MASK_HEAD = word_head("cls.predictions.", "transform.dense", "transform.LayerNorm", active_key="hidden_act")
BERT = Definition("BERT", _matches, encode, token_types, heads(pooled_classes(), _MASK_HEAD), hides_tokens=True)
