# SPDX-License-Identifier: Apache-2.0
"""MPNet: counted positions, no token types, and one bias by distance for all layers (arXiv 2004.09297)."""

from __future__ import annotations

from ..attention import Projections, Scoring, mask
from ..blocks import LayerSizes, PostNormLayer, layers_of, plain_layer
from ..distances import bucket_bias
from ..encoder import check_keys, embed, encoded_rows, encoder_tensors, sizes_of
from ..heads import heads
from ..model import Definition, EncoderRows, Writing, of_type
from ..tensors import Tensors
from .roberta import CLASSES, mask_head, positions_of

_PADDING = 1
_BUCKETS, _FURTHEST = 32, 128
_VOCABULARY = 30527


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, sizes_of(writing.keys)
    check_keys(keys)
    keys.only(relative_attention_num_buckets=_BUCKETS, pad_token_id=_PADDING)
    tensors = encoder_tensors(writing, "mpnet.")
    x = embed(writing, tensors, sizes, vocabulary=_VOCABULARY, positions=positions_of(keys))
    numbers = tensors.take("encoder.relative_attention_bias.weight", _BUCKETS, sizes.heads.queries)
    scoring = Scoring(sizes.heads.size**-0.5, mask(graph), bucket_bias(graph, numbers, _FURTHEST))
    count = keys.size("num_hidden_layers", default=12)
    layers = layers_of(tensors, "encoder.layer", "attention.attn.q.weight", count, lambda parts: _layer(parts, sizes))
    return encoded_rows(writing, tensors, sizes, x, layers, ("position_ids", "pooler.", "lm_head."), scoring)


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    attention = Projections.of(parts, (f"attention.attn.{name}" for name in "qkvo"), sizes.width)
    return plain_layer(
        parts, sizes, attention, ("intermediate.dense", "output.dense"), ("attention.LayerNorm", "output.LayerNorm")
    )


MPNET = Definition(
    "MPNet",
    of_type("mpnet"),
    _encode,
    lambda _: 0,
    heads(CLASSES, mask_head(_VOCABULARY)),
    hides_tokens=True,
)
