# SPDX-License-Identifier: Apache-2.0
"""T5's encoder: RMS pre-norm, a bias by distance, scores without a scale (arXiv 1910.10683, 2304.09151).

All layers share one table of biases; in umT5 every layer has its own.
"""

from __future__ import annotations

from ..attention import Heads, Projections, Scoring, mask
from ..blocks import LayerSizes, PreNormLayer
from ..distances import bucket_bias
from ..errors import NotDefinedError
from ..heads import ROWS_ALONE
from ..keys import Keys
from ..layers import FeedForward, Linear, Norm, activation_of, words
from ..model import Definition, EncoderRows, Writing, of_type
from ..tensors import Tensors

_TABLES = ("encoder.embed_tokens.weight", "shared.weight")
_GATED = "gated-"
_OWN_BIASES = "umt5"


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, tensors = writing.keys, writing.graph, writing.tensors
    # What decoders, training and translation read.
    keys.ignore("decoder_start_token_id", "dropout_rate", "is_encoder_decoder", "n_positions", "num_decoder_layers",
                "scale_decoder_outputs", "tie_encoder_decoder", "tie_word_embeddings")  # fmt: skip
    keys.only(is_decoder=False, scalable_attention=True)
    has_own_biases = keys.raw["model_type"] == _OWN_BIASES
    sizes, is_gated = _sizes(keys, "gated-gelu" if has_own_biases else "relu")
    table = next((name for name in _TABLES if name in tensors), _TABLES[1])
    with graph.scope("embeddings"):
        x = words(graph, tensors.take(table, keys.size("vocab_size"), sizes.width))
    buckets = keys.size("relative_attention_num_buckets", default=32)
    furthest = keys.size("relative_attention_max_distance", default=128)
    if buckets < 4 or furthest <= buckets // 4:
        raise NotDefinedError(f"{buckets} buckets for distances up to {furthest} are no buckets of T5's")
    scoring, seen = Scoring(1.0, ""), mask(graph)
    for number in range(keys.size("num_layers")):
        with graph.scope(f"block.{number}"):
            parts = tensors.below(f"encoder.block.{number}.layer.", member="0.SelfAttention.q.weight")
            if number == 0 or has_own_biases:
                numbers = parts.take("0.SelfAttention.relative_attention_bias.weight", buckets, sizes.heads.queries)
                scoring = Scoring(1.0, seen, bucket_bias(graph, numbers, furthest))
            x = _layer(parts, sizes, is_gated=is_gated).apply(graph, x, sizes.heads, scoring)
    x = Norm.rms(tensors, "encoder.final_layer_norm", sizes.width, sizes.epsilon).apply(graph, x)
    tensors.ignore("decoder.", "lm_head.", *_TABLES)
    return EncoderRows(x, sizes.width, tensors)


def _sizes(keys: Keys, network: str) -> tuple[LayerSizes, bool]:
    """The sizes, and whether networks are gated."""
    count, name = keys.size("num_heads"), keys.text("feed_forward_proj", default=network)
    is_gated = name.startswith(_GATED)
    # As the code of T5 1.1 has it.
    active = "gelu_new" if name == "gated-gelu" else name.removeprefix(_GATED)
    keys.only(dense_act_fn=active, is_gated_act=is_gated)
    return (
        LayerSizes(
            keys.size("d_model"),
            Heads(count, count, keys.size("d_kv")),
            keys.size("d_ff"),
            activation_of(active),
            keys.number("layer_norm_epsilon", default=1e-6),
        ),
        is_gated,
    )


def _layer(parts: Tensors, sizes: LayerSizes, *, is_gated: bool) -> PreNormLayer:
    width, inner, all_heads = sizes.width, sizes.inner, sizes.heads.width
    query, key, value = (Linear.of(parts, f"0.SelfAttention.{name}", all_heads, width, bias=False) for name in "qkv")
    output = Linear.of(parts, "0.SelfAttention.o", width, all_heads, bias=False)
    names = ("wi_0", "wi_1") if is_gated else ("wi",)
    ups = [Linear.of(parts, f"1.DenseReluDense.{name}", inner, width, bias=False) for name in names]
    down = Linear.of(parts, "1.DenseReluDense.wo", width, inner, bias=False)
    return PreNormLayer(
        Projections(query, key, value, output),
        Norm.rms(parts, "0.layer_norm", width, sizes.epsilon),
        FeedForward(ups[-1], sizes.active, down, ups[0] if is_gated else None),
        Norm.rms(parts, "1.layer_norm", width, sizes.epsilon),
    )


T5 = Definition(
    "T5",
    of_type("t5", "mt5", _OWN_BIASES),
    _encode,
    lambda _: 0,
    ROWS_ALONE,
)
