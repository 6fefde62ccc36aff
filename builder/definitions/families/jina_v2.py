# SPDX-License-Identifier: Apache-2.0
"""Jina BERT (jina-embeddings-v2): slopes by distance instead of positions, gated networks (arXiv 2310.19923)."""

from __future__ import annotations

from dataclasses import replace

from ..attention import Scoring, mask
from ..blocks import LayerSizes, PostNormLayer, gated_network, layers_of, post_norm_layer
from ..distances import alibi
from ..encoder import embed, encoded_rows, encoder_tensors, sizes_of, token_types
from ..heads import heads, pooled_classes
from ..keys import Keys
from ..layers import activation_of
from ..model import Definition, EncoderRows, Writing
from ..tensors import Tensors
from . import bert

_GATES = {"geglu": "gelu", "reglu": "relu"}


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, sizes_of(writing.keys)
    keys.only(position_embedding_type="alibi", is_decoder=False, add_cross_attention=False, pruned_heads={})
    keys.ignore("emb_pooler", "hidden_act", "tie_word_embeddings", "max_position_embeddings")
    tensors = encoder_tensors(writing, "bert.")
    x = embed(writing, tensors, sizes)
    sizes = replace(sizes, active=activation_of(_GATES[keys.text("feed_forward_type")]))
    scoring = Scoring(sizes.heads.size**-0.5, mask(graph), alibi(graph, sizes.heads.queries))
    count, member = keys.size("num_hidden_layers", default=12), "attention.self.query.weight"
    layers = layers_of(tensors, "encoder.layer", member, count, lambda parts: _layer(parts, sizes))
    return encoded_rows(writing, tensors, sizes, x, layers, ("pooler.", "cls."), scoring)


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    network = gated_network(parts, sizes, "mlp.gated_layers", "mlp.wo", bias=False, down_bias=True)
    norms = ("attention.output.LayerNorm", "mlp.layernorm")
    return post_norm_layer(parts, sizes, bert.projections(parts, sizes.width), network, norms)


def _matches(keys: Keys, names: frozenset[str]) -> bool:
    is_jina = keys.raw.get("model_type") == "bert" and keys.raw.get("position_embedding_type") == "alibi"
    is_gated = str(keys.raw.get("feed_forward_type")) in _GATES
    return is_jina and is_gated and any("mlp.gated_layers" in name for name in names)


JINA_V2 = Definition(
    "Jina BERT v2",
    _matches,
    _encode,
    token_types,
    heads(pooled_classes()),
    frozenset({"JinaBertModel"}),
    is_own=lambda _: True,
)
