# SPDX-License-Identifier: Apache-2.0
"""nomic BERT (nomic-embed-text v1 to v2): rotary embeddings, gated networks or experts (arXiv 2402.01613, 2502.07972).

Its config.json has GPT-2's names, or those of transformers 5, or both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ..attention import Projections, mask
from ..blocks import LayerSizes, Network, PostNormLayer, even_heads, post_norm_layer
from ..encoder import embed, encoded_rows, encoder_tensors
from ..errors import NotDefinedError
from ..experts import Experts
from ..heads import ROWS_ALONE
from ..keys import Keys
from ..layers import FeedForward, Linear, activation_of
from ..model import Definition, EncoderRows, Writing
from ..rotary import Frequencies, Rotary, frequencies_of
from ..tensors import Tensors

_GATES: Mapping[str, str] = MappingProxyType({"swiglu": "silu", "geglu": "gelu"})
"""Gated activations under nomic's names -> the activation of the gate."""
_NEUTRAL = (
    "attn_pdrop", "dense_seq_output", "embd_pdrop", "fused_bias_fc", "fused_dropout_add_ln", "head_dim", "hidden_act",
    "last_layer_subset", "max_trained_positions", "moe_impl", "pad_vocab_size_multiple", "reorder_and_upcast_attn",
    "resid_pdrop", "rotary_emb_base", "rope_theta", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "tie_word_embeddings", "use_flash_attn",
    "use_xentropy",
)  # fmt: skip


def _encode(writing: Writing) -> EncoderRows:
    keys, tensors = writing.keys, encoder_tensors(writing, "bert.")
    keys.only(prenorm=False, parallel_block=False, parallel_block_tied_norm=False, causal=False, use_rms_norm=False,
              rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
              rotary_scaling_factor=None, rope_scaling=None, scale_attn_weights=True,
              scale_attn_by_inverse_layer_idx=False, is_decoder=False, add_cross_attention=False)  # fmt: skip
    keys.ignore(*_NEUTRAL)
    width = keys.size("n_embd", "hidden_size", default=768)
    heads = even_heads(width, keys.size("n_head", "num_attention_heads", default=12))
    keys.only(head_dim=heads.size)
    epsilon = keys.number("layer_norm_epsilon", "layer_norm_eps", default=1e-12)
    inner = keys.size("n_inner", "intermediate_size", default=3072)
    sizes = LayerSizes(width, heads, inner, activation_of("silu"), epsilon)
    x = embed(writing, tensors, sizes, vocabulary=30528, norm="emb_ln")
    scoring = Rotary.of(writing.graph, _frequencies(keys, heads.size)).scoring(writing.graph, mask(writing.graph))
    return encoded_rows(writing, tensors, sizes, x, _layers(keys, tensors, sizes), (), scoring)


def _frequencies(keys: Keys, size: int) -> Frequencies:
    """By rotary_emb_base or rope_parameters, which must agree where both are given."""
    positions = keys.size("n_positions", "max_position_embeddings", default=2048)
    parameters = keys.inner("rope_parameters")
    own, theirs = keys.raw.get("rotary_emb_base"), (parameters.raw if parameters else {}).get("rope_theta")
    if own is not None and theirs is not None and own != theirs:
        raise NotDefinedError(f"'rotary_emb_base' is {own!r}, and 'rope_parameters.rope_theta' {theirs!r}")
    base = keys.number("rotary_emb_base", "rope_theta", default=1000.0)
    return frequencies_of(parameters, size, base, positions)


def _layers(keys: Keys, tensors: Tensors, sizes: LayerSizes) -> Iterator[PostNormLayer]:
    for number in range(keys.size("n_layer", "num_hidden_layers", default=12)):
        parts = tensors.below(f"encoder.layers.{number}.", member="attn.Wqkv.weight")
        bias = keys.boolean("qkv_proj_bias", default="attn.Wqkv.bias" in parts)
        fused = Projections.from_fused(parts, "attn.Wqkv", "attn.out_proj", sizes.heads, sizes.width, bias=bias)
        yield post_norm_layer(parts, sizes, fused, _network(keys, parts, sizes, number), ("norm1", "norm2"))


def _network(keys: Keys, parts: Tensors, sizes: LayerSizes, number: int) -> Network:
    """A feed-forward network; in every n-th layer a mixture of experts."""
    every, experts = keys.size("moe_every_n_layers", default=0, least=0), keys.size("num_experts", default=0, least=0)
    keys.only(num_shared_experts=0, expert_choice_router=False, moe_normalize_expert_weights=False, ffn_div=1)
    experts_per_token = keys.size("moe_top_k", default=1)
    keys.ignore("moe_resid_pdrop", "router_aux_loss_coef")
    if not every or number % every != 1:
        return _feed_forward(keys, parts, sizes)
    if experts_per_token > experts:
        raise NotDefinedError(f"'moe_top_k' is {experts_per_token} of {experts} experts")
    rows = experts * sizes.inner
    return Experts(
        parts.take("mlp.router.layer.weight", experts, sizes.width),
        parts.take("mlp.experts.mlp.w1", rows, sizes.width),
        activation_of(keys.text("activation_function", default="gelu")),
        parts.take("mlp.experts.mlp.w2", rows, sizes.width),
        parts.take("mlp.experts.bias", sizes.width),
        experts_per_token,
    )


def _feed_forward(keys: Keys, parts: Tensors, sizes: LayerSizes) -> FeedForward:
    width, inner = sizes.width, sizes.inner
    is_gated = "mlp.fc11.weight" in parts
    first = keys.boolean("mlp_fc1_bias", default=("mlp.fc11.bias" if is_gated else "mlp.fc1.bias") in parts)
    down = Linear.of(parts, "mlp.fc2", width, inner, bias=keys.boolean("mlp_fc2_bias", default="mlp.fc2.bias" in parts))
    name = keys.text("activation_function", default="") or keys.text("hidden_act", default="silu")
    if is_gated:
        if name not in _GATES and "activation_function" in keys.raw:
            raise NotDefinedError(
                f"'activation_function' is {name[:60]!r} of a gate, and {', '.join(_GATES)} are known"
            )
        up, gate = (Linear.of(parts, f"mlp.{part}", inner, width, bias=first) for part in ("fc11", "fc12"))
        return FeedForward(up, activation_of(_GATES.get(name, name)), down, gate)
    return FeedForward(Linear.of(parts, "mlp.fc1", inner, width, bias=first), activation_of(name), down)


NOMIC = Definition(
    "nomic BERT",
    lambda keys, names: keys.raw.get("model_type") == "nomic_bert" and any("attn.Wqkv" in name for name in names),
    _encode,
    lambda keys: keys.size("type_vocab_size", default=2, least=0),
    ROWS_ALONE,
    frozenset({"NomicBertModel"}),
    is_own=lambda keys: bool(keys.raw.get("moe_every_n_layers")),  # transformers has no experts
)
