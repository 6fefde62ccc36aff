# SPDX-License-Identifier: Apache-2.0
"""ModernBERT: pre-norm, rotary embeddings, gated networks, and windows in most layers (arXiv 2412.13663)."""

from __future__ import annotations

from dataclasses import replace

from padfree.contract.texts import CLASSES, MASKED, PAIRS, SPARSE, TOKENS

from ..attention import FULL, SLIDING, Projections, Scoring, layer_kinds, mask
from ..blocks import LayerSizes, PreNormLayer, gated_network
from ..encoder import sizes_of
from ..errors import NotDefinedError
from ..heads import LOGITS, ROWS_ALONE, first_token, mean, token_classes, word_scores
from ..keys import Keys
from ..layers import Linear, Norm, activation, words
from ..model import Definition, EncoderRows, Outputs, Writing, of_type
from ..rotary import Frequencies, Rotary, frequencies_of, parameters_by_kind
from ..tensors import Tensors

_VOCABULARY = 50368
_WORDS = "embeddings.tok_embeddings.weight"


def _encode(writing: Writing) -> EncoderRows:
    keys, graph = writing.keys, writing.graph
    # Entries of the first releases, read by other attention code; hidden_activation is the one that counts.
    keys.only(position_embedding_type="absolute")
    keys.ignore("initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad",
                "mlp_dropout", "sparse_prediction", "sparse_pred_ignore_index", "layer_norm_eps", "decoder_bias",
                "classifier_pooling", "classifier_bias", "classifier_activation", "tie_word_embeddings",
                "hidden_act")  # fmt: skip
    bias = keys.boolean("norm_bias", default=False)
    sizes = sizes_of(keys, inner=1152, epsilon=1e-5, active_key="hidden_activation", epsilon_key="norm_eps")
    tensors = writing.tensors.below("", "model.", member=_WORDS)
    with graph.scope("embeddings"):
        count = keys.size("vocab_size", default=_VOCABULARY)
        x = words(graph, tensors.take(_WORDS, count, sizes.width))
        x = Norm.of(tensors, "embeddings.norm", sizes.width, sizes.epsilon, bias=bias).apply(graph, x)
    kinds = _kinds(keys)
    scorings = _scorings(writing, kinds, sizes)
    for number, kind in enumerate(kinds):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"layers.{number}.", member="attn.Wqkv.weight")
            x = _layer(keys, parts, sizes, is_first=number == 0).apply(graph, x, sizes.heads, scorings[kind])
    x = Norm.of(tensors, "final_norm", sizes.width, sizes.epsilon, bias=bias).apply(graph, x)
    tensors.ignore("head.", "decoder.")
    return EncoderRows(x, sizes.width, tensors)


def _kinds(keys: Keys) -> tuple[str, ...]:
    """Which attention every layer has."""
    count, every = keys.size("num_hidden_layers", default=22), keys.size("global_attn_every_n_layers", default=3)
    return layer_kinds(keys, [SLIDING if number % every else FULL for number in range(count)])


def _scorings(writing: Writing, kinds: tuple[str, ...], sizes: LayerSizes) -> dict[str, Scoring]:
    keys, graph = writing.keys, writing.graph
    side, frequencies = keys.size("local_attention", default=128) // 2, _frequencies(keys, sizes.heads.size)
    sides = {FULL: None, SLIDING: side}
    # A query has three tokens of its own or more. A row that sees none of them would depend on padding.
    if graph.unseen is not None and graph.unseen.longest > side + 3:
        raise NotDefinedError(
            f"queries are expanded to {graph.unseen.longest} tokens, of which the last may see none through a window "
            f"of {side}: up to {side + 3} are known"
        )
    return {
        kind: Rotary.of(graph, frequencies[kind]).scoring(graph, mask(graph, before=sides[kind], after=sides[kind]))
        for kind in sorted(set(kinds))
    }


def _frequencies(keys: Keys, size: int) -> dict[str, Frequencies]:
    positions = keys.size("max_position_embeddings", default=8192)
    bases = {
        FULL: keys.number("global_rope_theta", default=160_000.0),
        SLIDING: keys.number("local_rope_theta", default=10_000.0),
    }
    keys.only(rope_scaling=None)
    inner = parameters_by_kind(keys.inner("rope_parameters"), bases)
    return {kind: frequencies_of(inner[kind], size, base, positions) for kind, base in bases.items()}


def _layer(keys: Keys, parts: Tensors, sizes: LayerSizes, *, is_first: bool) -> PreNormLayer:
    norm_bias, bias = keys.boolean("norm_bias", default=False), keys.boolean("mlp_bias", default=False)
    attention_bias = keys.boolean("attention_bias", default=False)
    return PreNormLayer(
        Projections.from_fused(parts, "attn.Wqkv", "attn.Wo", sizes.heads, sizes.width, bias=attention_bias),
        None if is_first else Norm.of(parts, "attn_norm", sizes.width, sizes.epsilon, bias=norm_bias),
        gated_network(parts, sizes, "mlp.Wi", "mlp.Wo", bias=bias, down_bias=bias),
        Norm.of(parts, "mlp_norm", sizes.width, sizes.epsilon, bias=norm_bias),
    )


def _head(writing: Writing, encoded: EncoderRows, x: str) -> str:
    """norm(activation(dense(x))), which comes before all classifiers."""
    keys, width = writing.keys, encoded.width
    dense = Linear.of(writing.tensors, "head.dense", width, width, bias=keys.boolean("classifier_bias", default=False))
    bias = keys.boolean("norm_bias", default=False)
    norm = Norm.of(writing.tensors, "head.norm", width, keys.number("norm_eps", default=1e-5), bias=bias)
    active = activation(keys, "classifier_activation", default="gelu")
    return norm.apply(writing.graph, active(writing.graph, dense.apply(writing.graph, x)))


def _classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    graph, pooling = writing.graph, writing.keys.text("classifier_pooling", default="cls")
    if pooling not in ("cls", "mean"):
        raise NotDefinedError(f"'classifier_pooling' is {pooling[:60]!r}, and cls and mean alone are known")
    pooled = first_token(graph, encoded.rows) if pooling == "cls" else mean(graph, encoded.rows)
    last = Linear.of(writing.tensors, "classifier", writing.labels, encoded.width)
    return {LOGITS: (last.apply(graph, _head(writing, encoded, pooled)), (writing.labels,))}


def _token_classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    return token_classes(writing, replace(encoded, rows=_head(writing, encoded, encoded.rows)))


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    x = _head(writing, encoded, encoded.rows)
    names = "decoder.weight", encoded.tensors, _WORDS
    bias = "decoder.bias" if writing.keys.boolean("decoder_bias", default=True) else ""
    return word_scores(writing, x, writing.tensors, *names, encoded.width, vocabulary=_VOCABULARY, bias=bias)


_HEADS = {PAIRS: _classes, CLASSES: _classes, TOKENS: _token_classes, MASKED: _mask_head, SPARSE: _mask_head}
MODERNBERT = Definition(
    "ModernBERT", of_type("modernbert"), _encode, lambda _: 0, {**ROWS_ALONE, **_HEADS}, hides_tokens=True
)
