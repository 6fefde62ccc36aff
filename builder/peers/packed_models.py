# SPDX-License-Identifier: Apache-2.0
"""Encoders of transformers over packed tokens, written anew for torch.compile.

Q, K and V are one GEMM, and so are the two halves of a gated feed-forward network; everything else is left to the
compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Window = tuple[int, int]
WHOLE: Window = (-1, -1)
Attend = Callable[[Window], Callable[[Any, Any, Any], Any]]
"""Attention inside sequences, of Q, K, V [T, H, D] to [T, H, D], for the keys that a row sees on each side (-1: all).

What a window needs is made once, before all runs."""
Forward = Callable[["Tokens"], Mapping[str, Any]]
"""From packed tokens to a model's outputs by name: rows of tokens [T, ...], pooled ones [B, E]."""


@dataclass(frozen=True)
class Tokens:
    """Packed tokens as tensors of 64-bit integers: ids, types and positions in their sequences [T], and offsets."""

    ids: Any
    types: Any
    positions: Any
    firsts: Any


def packed_bert(torch: Any, attend: Attend, model: Any) -> Forward:
    """BertModel."""
    functional, tables = torch.nn.functional, model.embeddings
    layers = []
    for layer in model.encoder.layer:
        three = [getattr(layer.attention.self, name) for name in ("query", "key", "value")]
        layers.append((layer, join(torch, three), torch.cat([item.bias for item in three]).detach()))
    heads, attend_to_all = model.config.num_attention_heads, attend(WHOLE)

    def forward(tokens: Tokens) -> Mapping[str, Any]:
        x = tables.word_embeddings(tokens.ids) + tables.position_embeddings(tokens.positions)
        x = tables.LayerNorm(x + tables.token_type_embeddings(tokens.types))
        for layer, weight, bias in layers:
            q, k, v = functional.linear(x, weight, bias).view(len(x), 3, heads, -1).unbind(1)
            context = attend_to_all(q, k, v).flatten(1)
            x = layer.attention.output.LayerNorm(layer.attention.output.dense(context) + x)
            inner = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(x))
            x = layer.output.LayerNorm(layer.output.dense(inner) + x)
        return {"last_hidden_state": x, "pooler_output": torch.tanh(model.pooler.dense(x[tokens.firsts]))}

    return forward


def packed_modernbert(torch: Any, attend: Attend, model: Any) -> Forward:
    """ModernBertModel: pre-norm layers, windows in most of them, two sets of rotary frequencies."""
    config, heads = model.config, model.config.num_attention_heads
    near = (config.sliding_window, config.sliding_window)
    attention = {"full_attention": attend(WHOLE), "sliding_attention": attend(near)}

    def forward(tokens: Tokens) -> Mapping[str, Any]:
        x = model.embeddings(tokens.ids)
        angles = {
            kind: [item[0, :, None] for item in model.rotary_emb(x, tokens.positions[None], kind)] for kind in attention
        }
        for layer in model.layers:
            q, k, v = layer.attn.Wqkv(layer.attn_norm(x)).view(len(x), 3, heads, -1).unbind(1)
            q, k = (rotate(torch, item, *angles[layer.attention_type]) for item in (q, k))
            x = x + layer.attn.Wo(attention[layer.attention_type](q, k, v).flatten(1))
            x = x + layer.mlp(layer.mlp_norm(x))
        return {"last_hidden_state": model.final_norm(x)}

    return forward


def packed_nomic(torch: Any, attend: Attend, model: Any) -> Forward:
    """NomicBertModel: rotary embeddings, gated feed-forward networks, post-norm layers."""
    functional, tables = torch.nn.functional, model.embeddings
    layers = []
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = join(torch, (attention.q_proj, attention.k_proj, attention.v_proj))
        layers.append((layer, qkv, join(torch, (mlp.gate_proj, mlp.up_proj))))
    heads, attend_to_all = model.config.num_attention_heads, attend(WHOLE)

    def forward(tokens: Tokens) -> Mapping[str, Any]:
        x = tables.LayerNorm(tables.word_embeddings(tokens.ids) + tables.token_type_embeddings(tokens.types))
        angles = [item[0, :, None] for item in model.rotary_emb(x, tokens.positions[None])]
        for layer, qkv, halves in layers:
            q, k, v = functional.linear(x, qkv).view(len(x), 3, heads, -1).unbind(1)
            q, k = (rotate(torch, item, *angles) for item in (q, k))
            context = attend_to_all(q, k, v).flatten(1)
            x = layer.post_attention_layernorm(x + layer.self_attn.o_proj(context))
            gate, up = functional.linear(x, halves).chunk(2, -1)
            x = layer.post_mlp_layernorm(x + layer.mlp.down_proj(layer.mlp.act_fn(gate) * up))
        return {"last_hidden_state": x}

    return forward


def join(torch: Any, linears: Sequence[Any]) -> Any:
    """The weights of some GEMMs of the same rows as one."""
    return torch.cat([item.weight for item in linears]).detach()


def rotate(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotary embedding of x [T, H, D] by angles [T, 1, D], pairs half a head apart, in fp32."""
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


PACKED: Mapping[str, Callable[[Any, Attend, Any], Forward]] = {
    "BertModel": packed_bert,
    "ModernBertModel": packed_modernbert,
    "NomicBertModel": packed_nomic,
}
"""By the name of the model's class."""
