# SPDX-License-Identifier: Apache-2.0
"""Jina v3: XLM-RoBERTa with rotary embeddings, and an adapter for every task (arXiv 2409.10173)."""

from __future__ import annotations

from collections.abc import Iterator

from ..adapters import AdaptedTensors, Adapters
from ..attention import Projections, mask
from ..blocks import LayerSizes, PostNormLayer, layers_of, plain_network, post_norm_layer
from ..encoder import WORDS, embed, encoded_rows, sizes_of
from ..heads import ROWS_ALONE
from ..keys import Keys
from ..model import Definition, EncoderRows, Writing
from ..rotary import Frequencies, Rotary, frequencies, plain_frequencies
from ..tensors import Tensors

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
    tensors = adapted_tensors.below("", "roberta.", member=WORDS)
    sizes = sizes_of(keys, width=1024, heads=16, inner=4096, epsilon=1e-5)
    x = embed(writing, tensors, sizes, vocabulary=250_002, norm="emb_ln")
    all_layers = layers(tensors, sizes, keys.size("num_hidden_layers", default=24))
    scoring = Rotary.of(writing.graph, _frequencies(keys, sizes.heads.size)).scoring(writing.graph, mask(writing.graph))
    return encoded_rows(writing, tensors, sizes, x, all_layers, ("pooler.",), scoring)


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


def layers(tensors: Tensors, sizes: LayerSizes, count: int) -> Iterator[PostNormLayer]:
    """Layers under the names that Jina's code has for fused projections."""
    return layers_of(tensors, "encoder.layers", "mixer.Wqkv.weight", count, lambda parts: _layer(parts, sizes))


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    fused = Projections.from_fused(parts, "mixer.Wqkv", "mixer.out_proj", sizes.heads, sizes.width, bias=True)
    return post_norm_layer(parts, sizes, fused, plain_network(parts, sizes, "mlp.fc1", "mlp.fc2"), ("norm1", "norm2"))


def _matches(keys: Keys, names: frozenset[str]) -> bool:
    model_type, positions = keys.raw.get("model_type"), keys.raw.get("position_embedding_type")
    is_jina = model_type == _NATIVE or (model_type == "xlm-roberta" and positions == "rotary")
    return is_jina and any("mixer.Wqkv" in name for name in names)


JINA_V3 = Definition(
    "Jina v3",
    _matches,
    _encode,
    lambda keys: keys.size("type_vocab_size", default=1),
    ROWS_ALONE,
    frozenset({"XLMRobertaLoRA", "XLMRobertaModel"}),
    has_adapters=True,
)
