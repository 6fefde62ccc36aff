# SPDX-License-Identifier: Apache-2.0
"""The best that PyTorch does for BERT without padding: packed tokens, variable-length FlashAttention, compiled.

Needs torch.nn.attention.varlen (PyTorch 2.10 or newer). The weights are those of a transformers BertModel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .contender import Contender, UnavailableError
from .setup import Setup
from .torch_peers import load, torch_module, ways_of


def varlen(setup: Setup) -> Contender:
    """BERT on packed tokens, compiled, plain and in a CUDA graph."""
    torch = torch_module()
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise UnavailableError(f"this PyTorch ({torch.__version__}) has no torch.nn.attention.varlen") from error
    if setup.model.precision == "fp32":
        raise UnavailableError("FlashAttention runs fp16 and bf16, this is a comparison in fp32")
    model = load(setup)
    if type(model).__name__ != "BertModel":
        raise UnavailableError(f"is written for BertModel, this is {type(model).__name__}")
    forward = packed_bert(torch, varlen_attn, model)
    compiled = torch.compile(forward, dynamic=False)
    ragged, seq_lens = setup.batch.ragged, setup.batch.seq_lens
    positions = np.concatenate([np.arange(length) for length in seq_lens])
    arrays = (
        ragged.tokens["input_ids"],
        ragged.tokens.get("token_type_ids", np.zeros(setup.batch.tokens, np.int32)),
        positions,
        np.concatenate([[0], np.cumsum(seq_lens)[:-1]]),
    )
    ids, types, places, firsts = (torch.from_numpy(array.astype(np.int64)).cuda() for array in arrays)
    cu_seqlens = torch.from_numpy(np.concatenate([[0], np.cumsum(seq_lens)]).astype(np.int32)).cuda()

    def run() -> Any:
        with torch.inference_mode():
            return compiled(ids, types, places, firsts, cu_seqlens, max(seq_lens))

    hidden, pooled = (tensor.float().cpu().numpy() for tensor in run())
    answers = {
        "last_hidden_state": list(np.split(hidden, np.cumsum(seq_lens)[:-1])),
        "pooler_output": list(pooled),
    }
    return Contender(answers, ways_of(run))


def packed_bert(torch: Any, varlen_attn: Any, model: Any) -> Callable[..., Any]:
    """BERT over packed tokens: Q, K and V are one product, everything else is left to the compiler."""
    functional, config = torch.nn.functional, model.config
    heads, head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    layers = []
    for layer in model.encoder.layer:
        three = [getattr(layer.attention.self, name) for name in ("query", "key", "value")]
        weight = torch.cat([item.weight for item in three]).detach()
        layers.append((layer, weight, torch.cat([item.bias for item in three]).detach()))

    def norm(x: Any, module: Any) -> Any:
        return functional.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)

    def forward(ids: Any, types: Any, positions: Any, firsts: Any, cu_seqlens: Any, longest: int) -> Any:
        tables = model.embeddings
        x = tables.word_embeddings(ids) + tables.position_embeddings(positions) + tables.token_type_embeddings(types)
        x = norm(x, tables.LayerNorm)
        for layer, weight, bias in layers:
            q, k, v = functional.linear(x, weight, bias).view(-1, 3, heads, head_size).unbind(1)
            context = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest).flatten(1)
            x = norm(layer.attention.output.dense(context) + x, layer.attention.output.LayerNorm)
            inner = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(x))
            x = norm(layer.output.dense(inner) + x, layer.output.LayerNorm)
        return x, torch.tanh(model.pooler.dense(x[firsts]))

    return forward
