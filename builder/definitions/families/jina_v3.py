# SPDX-License-Identifier: Apache-2.0
"""Jina v3: XLM-RoBERTa with rotary embeddings, and an adapter for every task (arXiv 2409.10173)."""

from __future__ import annotations

from padfree.contract.texts import FEATURES, SENTENCES

from ..adapters import AdaptedTensors, Adapters
from ..attention import Projections
from ..blocks import LayerSizes, PostNormLayer, even_heads
from ..heads import rows
from ..keys import Keys
from ..layers import FeedForward, Linear, Norm, activation
from ..model import Definition, EncoderRows, Writing
from ..rotary import Frequencies, frequencies, plain_frequencies
from ..tensors import Tensors
from .flash import embed, rotary_layers

_NATIVE = "jina_embeddings_v3"
"""The model_type of transformers; the hub's is that of XLM-RoBERTa."""


def _encode(writing: Writing) -> EncoderRows:
    keys = writing.keys
    keys.only(position_embedding_type="rotary", is_decoder=False, add_cross_attention=False, truncate_dim=None)
    # How it was trained, how code computes, and prompts.
    keys.ignore("emb_pooler", "load_trained_adapters", "lora_dropout_p", "lora_main_params_trainable",
                "task_instructions", "tie_word_embeddings", "use_flash_attn", "use_reentrant")  # fmt: skip
    adapters = _adapters(keys, writing.adapter)
    adapted_tensors = AdaptedTensors(writing.tensors, adapters) if adapters.names else writing.tensors
    tensors = adapted_tensors.below("", "roberta.", member="embeddings.word_embeddings.weight")
    width = keys.size("hidden_size", default=1024)
    sizes = LayerSizes(
        width,
        even_heads(width, keys.size("num_attention_heads", default=16)),
        keys.size("intermediate_size", default=4096),
        activation(keys, "hidden_act", default="gelu"),
        keys.number("layer_norm_eps", default=1e-5),
    )
    x = embed(writing, tensors, "emb_ln", sizes, keys.size("vocab_size", default=250_002), _token_types(keys))

    def layer(number: int) -> PostNormLayer:
        return layer_of(tensors.below(f"encoder.layers.{number}.", member="mixer.Wqkv.weight"), sizes)

    count = keys.size("num_hidden_layers", default=24)
    x = rotary_layers(writing, x, sizes, _frequencies(keys, sizes.heads.size), count, layer)
    tensors.ignore("pooler.")
    return EncoderRows(x, width, tensors)


def _adapters(keys: Keys, name: str) -> Adapters:
    names = keys.texts("lora_adaptations", ())
    rank = keys.size("lora_rank", default=4)
    adapters = Adapters(names, rank, keys.number("lora_alpha", default=1.0) / rank, name)
    adapters.check()
    return adapters


def _frequencies(keys: Keys, size: int) -> Frequencies:
    positions = keys.size("max_position_embeddings", default=8194)
    if keys.raw.get("model_type") == _NATIVE:
        return frequencies(keys, size, 20_000.0, positions)
    return plain_frequencies(size, keys.number("rotary_emb_base"))


def layer_of(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    """One layer's tensors, under the names that Jina's code has for fused projections."""
    width, inner = sizes.width, sizes.inner
    up, down = Linear.of(parts, "mlp.fc1", inner, width), Linear.of(parts, "mlp.fc2", width, inner)
    return PostNormLayer(
        Projections.from_fused(parts, "mixer.Wqkv", "mixer.out_proj", sizes.heads, width, bias=True),
        Norm.of(parts, "norm1", width, sizes.epsilon),
        FeedForward(up, sizes.active, down),
        Norm.of(parts, "norm2", width, sizes.epsilon),
    )


def _token_types(keys: Keys) -> int:
    return keys.size("type_vocab_size", default=1)


def _matches(keys: Keys, names: frozenset[str]) -> bool:
    model_type, positions = keys.raw.get("model_type"), keys.raw.get("position_embedding_type")
    is_jina = model_type == _NATIVE or (model_type == "xlm-roberta" and positions == "rotary")
    return is_jina and any("mixer.Wqkv" in name for name in names)


JINA_V3 = Definition(
    "Jina v3",
    _matches,
    _encode,
    _token_types,
    {FEATURES: rows, SENTENCES: rows},
    frozenset({"XLMRobertaLoRA", "XLMRobertaModel"}),
    has_adapters=True,
)
