# SPDX-License-Identifier: Apache-2.0
"""GTE (gte-en-v1.5, gte-multilingual, snowflake-arctic-embed v2): gates and rotary embeddings (arXiv 2407.19669)."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ..attention import Projections, mask
from ..blocks import LayerSizes, PostNormLayer, gated_network, layers_of, post_norm_layer
from ..encoder import embed, encoded_rows, encoder_tensors, sizes_of
from ..errors import NotDefinedError
from ..heads import heads, pooled_classes
from ..keys import Keys
from ..model import Definition, EncoderRows, Writing
from ..rotary import Frequencies, Rotary, frequencies, plain_frequencies
from ..tensors import Tensors

T = TypeVar("T")

_GTE, _NEW = "gte", "new"
"""transformers' model_type, and the hub's, whose defaults are not known."""


def _encode(writing: Writing) -> EncoderRows:
    keys = writing.keys
    tensors = encoder_tensors(writing, "new.", "gte.")
    keys.only(position_embedding_type="rope", layer_norm_type="layer_norm", pack_qkv=True, logn_attention_scale=False,
              logn_attention_clip1=False)  # fmt: skip
    # How the code computes, and under which licence: none of it changes results.
    keys.ignore("unpad_inputs", "use_memory_efficient_attention", "tie_word_embeddings")
    sizes = sizes_of(
        keys,
        width=_default(keys, 768),
        heads=_default(keys, 12),
        inner=_default(keys, 3072),
        active=_default(keys, "gelu"),
        epsilon=_default(keys, 1e-12),
    )
    x = embed(writing, tensors, sizes, vocabulary=_default(keys, 250_048))
    count, member = keys.size("num_hidden_layers", default=_default(keys, 12)), "attention.qkv_proj.weight"
    layers = layers_of(tensors, "encoder.layer", member, count, lambda parts: _layer(parts, sizes))
    scoring = Rotary.of(writing.graph, _frequencies(keys, sizes.heads.size)).scoring(writing.graph, mask(writing.graph))
    return encoded_rows(writing, tensors, sizes, x, layers, ("pooler.", "lm_head."), scoring)


def _frequencies(keys: Keys, size: int) -> Frequencies:
    base = keys.number("rope_theta", default=_default(keys, 160_000.0))
    positions = keys.size("max_position_embeddings", default=_default(keys, 8192))
    scaling = keys.raw.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("type", scaling.get("rope_type")) != "ntk":
        return frequencies(keys, size, base, positions)
    inner = keys.inner("rope_scaling")
    assert inner is not None
    inner.only(mixed_b=None)
    inner.ignore("type", "rope_type")
    factor = inner.number("factor")
    inner.check_all_read()
    if factor <= 1:
        raise NotDefinedError(f"'rope_scaling.factor' is {factor:g}, and numbers above 1 alone are known")
    return Frequencies(plain_frequencies(size, base * factor).numbers / np.float32(factor ** (2 / size)))


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    fused = Projections.from_fused(parts, "attention.qkv_proj", "attention.o_proj", sizes.heads, sizes.width, bias=True)
    network = gated_network(parts, sizes, "mlp.up_gate_proj", "mlp.down_proj", bias=False, down_bias=True, gate=1)
    return post_norm_layer(parts, sizes, fused, network, ("attn_ln", "mlp_ln"))


def _default(keys: Keys, value: T) -> T | None:
    """A default of transformers'; None for the hub's "new", whose config.json must have the entry."""
    return value if keys.raw.get("model_type") == _GTE else None


GTE = Definition(
    "GTE",
    lambda keys, names: (
        keys.raw.get("model_type") in (_GTE, _NEW) and any("attention.qkv_proj" in name for name in names)
    ),
    _encode,
    lambda keys: keys.size("type_vocab_size", default=_default(keys, 1), least=0),
    heads(pooled_classes()),
    frozenset({"NewModel", "GteModel"}),
)
