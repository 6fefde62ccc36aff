# SPDX-License-Identifier: Apache-2.0
"""ModernBERT: pre-norm, rotary embeddings, gated networks, and windows in most layers (arXiv 2412.13663)."""

from __future__ import annotations

from collections.abc import Sequence

from padfree.contract.texts import CLASSES, FEATURES, MASKED, PAIRS, SENTENCES, SPARSE, TOKENS

from ..attention import FULL, SLIDING, Projections, Scoring, layer_kinds, mask
from ..blocks import LayerSizes, PreNormLayer
from ..errors import NotDefinedError
from ..graph import MASK, EncoderGraph
from ..heads import LOGITS, first_token, own_or_tied, rows
from ..keys import Keys
from ..layers import FeedForward, Linear, Norm, activation, words
from ..model import Definition, EncoderRows, Outputs, Writing, of_type
from ..rotary import Frequencies, Rotary, frequencies_of, parameters_by_kind
from ..tensors import Tensors
from . import bert

_VOCABULARY = 50368


def _encode(writing: Writing) -> EncoderRows:
    keys, graph = writing.keys, writing.graph
    # Entries of the first releases, read by other attention code; hidden_activation is the one that counts.
    keys.only(position_embedding_type="absolute")
    keys.ignore("initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad",
                "mlp_dropout", "sparse_prediction", "sparse_pred_ignore_index", "layer_norm_eps", "decoder_bias",
                "classifier_pooling", "classifier_bias", "classifier_activation", "tie_word_embeddings",
                "hidden_act")  # fmt: skip
    bias = keys.boolean("norm_bias", default=False)
    sizes = bert.sizes_of(keys, inner=1152, epsilon=1e-5, active_key="hidden_activation", epsilon_key="norm_eps")
    tensors = writing.tensors.below("", "model.", member="embeddings.tok_embeddings.weight")
    with graph.scope("embeddings"):
        count = keys.size("vocab_size", default=_VOCABULARY)
        x = words(graph, tensors.take("embeddings.tok_embeddings.weight", count, sizes.width))
        x = Norm.of(tensors, "embeddings.norm", sizes.width, sizes.epsilon, bias=bias).apply(graph, x)
    count = keys.size("num_hidden_layers", default=22)
    kinds = _kinds(keys, count)
    scorings = _scorings(writing, kinds, sizes)
    for number, kind in enumerate(kinds):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"layers.{number}.", member="attn.Wqkv.weight")
            x = _layer(keys, parts, sizes, is_first=number == 0).apply(graph, x, sizes.heads, scorings[kind])
    x = Norm.of(tensors, "final_norm", sizes.width, sizes.epsilon, bias=bias).apply(graph, x)
    tensors.ignore("head.", "decoder.")
    return EncoderRows(x, sizes.width, tensors)


def _kinds(keys: Keys, count: int) -> Sequence[str]:
    """Which attention every layer has."""
    every = keys.size("global_attn_every_n_layers", default=3)
    return layer_kinds(keys, [SLIDING if number % every else FULL for number in range(count)])


def _scorings(writing: Writing, kinds: Sequence[str], sizes: LayerSizes) -> dict[str, Scoring]:
    keys, graph = writing.keys, writing.graph
    side = keys.size("local_attention", default=128) // 2
    scorings, frequencies = {}, _frequencies(keys, sizes.heads.size)
    for kind in sorted(set(kinds)):
        rotary = Rotary.of(graph, frequencies[kind])
        seen = mask(graph) if kind == FULL else mask(graph, before=side, after=side)
        rotate = lambda x, rotary=rotary: rotary.rotate(graph, x)  # noqa: E731
        scorings[kind] = Scoring(sizes.heads.size**-0.5, seen, rotate_queries=rotate, rotate_keys=rotate)
    return scorings


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
    width, inner = sizes.width, sizes.inner
    norm_bias, bias = keys.boolean("norm_bias", default=False), keys.boolean("mlp_bias", default=False)
    gate, up = Linear.of(parts, "mlp.Wi", 2 * inner, width, bias=bias).split(inner, inner)
    down = Linear.of(parts, "mlp.Wo", width, inner, bias=bias)
    attention_bias = keys.boolean("attention_bias", default=False)
    return PreNormLayer(
        Projections.from_fused(parts, "attn.Wqkv", "attn.Wo", sizes.heads, width, bias=attention_bias),
        None if is_first else Norm.of(parts, "attn_norm", width, sizes.epsilon, bias=norm_bias),
        FeedForward(up, sizes.active, down, gate),
        Norm.of(parts, "mlp_norm", width, sizes.epsilon, bias=norm_bias),
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
    pooled = first_token(graph, encoded.rows) if pooling == "cls" else _mean(graph, encoded.rows)
    last = Linear.of(writing.tensors, "classifier", writing.labels, encoded.width)
    return {LOGITS: (last.apply(graph, _head(writing, encoded, pooled)), (writing.labels,))}


def _mean(graph: EncoderGraph, x: str) -> str:
    is_token = graph.unsqueeze(graph.op("Cast", MASK, to=1), -1)
    total = graph.op("ReduceSum", graph.op("Mul", x, is_token), [1], keepdims=0)
    return graph.op("Div", total, graph.op("ReduceSum", is_token, [1], keepdims=0))


def _token_classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    last = Linear.of(writing.tensors, "classifier", writing.labels, encoded.width)
    logits = last.apply(writing.graph, _head(writing, encoded, encoded.rows))
    return {LOGITS: (logits, ("sequence", writing.labels))}


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    keys, count = writing.keys, writing.keys.size("vocab_size", default=_VOCABULARY)
    is_tied, shape = keys.boolean("tie_word_embeddings", default=True), (count, encoded.width)
    names = "decoder.weight", "embeddings.tok_embeddings.weight"
    table = own_or_tied(writing.tensors, names[0], encoded.tensors, names[1], shape, is_tied=is_tied)
    bias = writing.tensors.take("decoder.bias", count) if keys.boolean("decoder_bias", default=True) else None
    logits = Linear(table, bias).apply(writing.graph, _head(writing, encoded, encoded.rows))
    return {LOGITS: (logits, ("sequence", count))}


MODERNBERT = Definition(
    "ModernBERT",
    of_type("modernbert"),
    _encode,
    lambda _: 0,
    {FEATURES: rows, SENTENCES: rows, PAIRS: _classes, CLASSES: _classes, TOKENS: _token_classes, MASKED: _mask_head,
     SPARSE: _mask_head},
)  # fmt: skip
