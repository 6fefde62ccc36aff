# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v2 and v3: scores have terms of queries and keys with embeddings of distances (arXiv 2006.03654)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..attention import Heads, Projections, Scoring, mask, split_heads
from ..blocks import LayerSizes, PostNormLayer
from ..distances import Integers, by_distance, log_buckets
from ..errors import NotDefinedError
from ..graph import MASK, EncoderGraph
from ..heads import classify_first, heads
from ..keys import Keys
from ..layers import Linear, Norm, activation, activation_of, add, position_rows, types, words
from ..model import Definition, EncoderRows, Outputs, Writing, of_type
from ..tensors import Tensors
from . import bert

_TERMS = {"c2p", "p2c"}


@dataclass(frozen=True)
class Distances:
    """Embeddings of distances.

    Attributes:
        rows: the table [2 R, E], normed where the model norms it.
        offsets: for every query and key the row for how far the query is after the key, [S, S].
        ahead: the row for how far it is before the key.
        scale: of all terms of scores.
    """

    rows: str
    offsets: str
    ahead: str
    scale: float

    @staticmethod
    def of(
        graph: EncoderGraph, rows: str, buckets: Integers, span: int, size: int, terms: tuple[str, ...]
    ) -> Distances:
        """The embeddings of distances from -N to N, whose buckets are given; the table has 2 * `span` rows.

        Scores have these terms, of heads of this size.
        """
        after, ahead = (
            by_distance(graph, np.clip(sign * buckets + span, 0, 2 * span - 1), len(buckets) // 2) for sign in (1, -1)
        )
        return Distances(rows, after, ahead, (size * (1 + len(terms))) ** -0.5)


@dataclass(frozen=True)
class Version:
    """The differences between the versions of DeBERTa.

    Attributes:
        vocabulary, layers: defaults of sizes.
        member: a tensor that every layer has.
        distances: writes the embeddings of distances, for some terms of scores.
        layer: a layer's tensors.
        projections: the layers that make keys and queries from embeddings of distances, for some terms.
    """

    vocabulary: int
    layers: int
    member: str
    distances: Callable[[Writing, Tensors, LayerSizes, tuple[str, ...]], Distances]
    layer: Callable[[Tensors, LayerSizes], PostNormLayer]
    projections: Callable[[Keys, Tensors, LayerSizes, tuple[str, ...]], dict[str, Linear]]


def encode(writing: Writing, sizes: LayerSizes, version: Version) -> EncoderRows:
    """The encoder of one version."""
    keys, graph, tensors = writing.keys, writing.graph, bert.encoder_tensors(writing, "deberta.")
    keys.ignore("pooler_dropout", "pooler_hidden_act", "legacy", "tie_word_embeddings", "padding_idx")
    keys.only(is_decoder=False, pooler_hidden_size=sizes.width)
    x = embedded = _embed(writing, tensors, sizes, version.vocabulary)
    seen, terms = mask(graph), _terms_of(keys)
    distances = version.distances(writing, tensors, sizes, terms)
    for number in range(keys.size("num_hidden_layers", default=version.layers)):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"encoder.layer.{number}.", member=version.member)
            more = _terms_by_distance(graph, distances, sizes.heads, version.projections(keys, parts, sizes, terms))
            x = version.layer(parts, sizes).apply(graph, x, sizes.heads, Scoring(distances.scale, seen, more=more))
        if number == 0 and version is _V2 and keys.size("conv_kernel_size", default=0, least=0):
            x = _convolve(writing, tensors, sizes, embedded, x)
    if not keys.raw.get("conv_kernel_size"):
        keys.ignore("conv_act")
    tensors.ignore("position_ids", "lm_predictions.", "mask_predictions.", "pooler.", "lm_head.")
    return EncoderRows(x, sizes.width, tensors)


def _encode(writing: Writing) -> EncoderRows:
    keys = writing.keys
    sizes = bert.sizes_of(keys, width=1536, heads=24, inner=6144, epsilon=1e-7)
    keys.only(attention_head_size=sizes.heads.size, conv_groups=1)
    return encode(writing, sizes, _V2)


def _terms_of(keys: Keys) -> tuple[str, ...]:
    """Which terms scores have besides the product of queries and keys."""
    types = keys.raw.get("pos_att_type")
    terms = tuple(item.strip() for item in types.lower().split("|")) if isinstance(types, str) else None
    terms = keys.texts("pos_att_type", ()) if terms is None else terms
    keys.ignore("pos_att_type")
    if not keys.boolean("relative_attention", default=False) or not terms or not _TERMS.issuperset(terms):
        raise NotDefinedError(f"'relative_attention' with 'pos_att_type' of {', '.join(sorted(_TERMS))} alone is known")
    return terms


def _embed(writing: Writing, tensors: Tensors, sizes: LayerSizes, vocabulary: int) -> str:
    """Word embeddings and, where the model has them, those of positions and types, through a norm; 0 in padding."""
    keys, graph = writing.keys, writing.graph
    narrow = keys.size("embedding_size", default=sizes.width)
    with graph.scope("embeddings"):
        count, rows = keys.size("vocab_size", default=vocabulary), keys.size("max_position_embeddings", default=512)
        x = words(graph, tensors.take("embeddings.word_embeddings.weight", count, narrow))
        if keys.boolean("position_biased_input", default=True):
            x = add(graph, x, position_rows(graph, tensors.take("embeddings.position_embeddings.weight", rows, narrow)))
        if kinds := token_types(keys):
            x = add(graph, x, types(graph, tensors.take("embeddings.token_type_embeddings.weight", kinds, narrow)))
        if narrow != sizes.width:
            x = Linear.of(tensors, "embeddings.embed_proj", sizes.width, narrow, bias=False).apply(graph, x)
        x = Norm.of(tensors, "embeddings.LayerNorm", sizes.width, sizes.epsilon).apply(graph, x)
    return graph.op("Mul", x, graph.op("Cast", graph.unsqueeze(MASK, 2), to=1))


def furthest_of(keys: Keys) -> int:
    """The largest distance that has an embedding of its own."""
    furthest = keys.raw.get("max_relative_positions", -1)
    keys.ignore("max_relative_positions")
    return furthest if isinstance(furthest, int) and furthest > 0 else keys.size("max_position_embeddings", default=512)


def _distances(writing: Writing, tensors: Tensors, sizes: LayerSizes, terms: tuple[str, ...]) -> Distances:
    keys, graph = writing.keys, writing.graph
    furthest = furthest_of(keys)
    keys.ignore("position_buckets")
    buckets = keys.raw.get("position_buckets", -1)
    has_buckets = isinstance(buckets, int) and buckets > 0
    span = keys.size("position_buckets") if has_buckets else furthest
    if (span < 4 and has_buckets) or furthest <= max(span // 2 + 1, 1):
        raise NotDefinedError(f"{span} buckets for distances up to {furthest} are none of DeBERTa's")
    with graph.scope("distances"):
        table = graph.weight(tensors.take("encoder.rel_embeddings.weight", 2 * span, sizes.width))
        norms = [item.strip() for item in keys.text("norm_rel_ebd", default="none").lower().split("|")]
        if not {"none", "layer_norm"}.issuperset(norms):
            raise NotDefinedError(
                f"'norm_rel_ebd' is {'|'.join(norms)[:60]!r}, and none and layer_norm alone are known"
            )
        if "layer_norm" in norms:
            table = Norm.of(tensors, "encoder.LayerNorm", sizes.width, sizes.epsilon).apply(graph, table)
        reach = 2 * max(furthest, span)
        offsets = np.arange(-reach, reach + 1)
        bucket = log_buckets(offsets, span, furthest) if has_buckets else offsets
        return Distances.of(graph, table, bucket, span, sizes.heads.size, terms)


def _projections(keys: Keys, parts: Tensors, sizes: LayerSizes, terms: tuple[str, ...]) -> dict[str, Linear]:
    """The layers that make keys and queries from embeddings of distances, for every term."""
    kind = "" if keys.boolean("share_att_key", default=False) else "pos_"
    names = {"c2p": f"attention.self.{kind}key_proj", "p2c": f"attention.self.{kind}query_proj"}
    return {term: Linear.of(parts, names[term], sizes.width, sizes.width) for term in terms}


def _terms_by_distance(
    graph: EncoderGraph, distances: Distances, heads: Heads, layers: Mapping[str, Linear]
) -> Callable[[str, str], str]:
    """A function that adds up the terms of queries and keys [B, H, S, D] with embeddings of distances: [B, H, S, S]."""
    tables = {term: _transpose(graph, layer.apply(graph, distances.rows), heads) for term, layer in layers.items()}

    def terms_of(q: str, k: str) -> str:
        terms = []
        if "c2p" in tables:
            terms.append(_choose(graph, q, tables["c2p"], distances.offsets))
        if "p2c" in tables:
            bias = _choose(graph, k, tables["p2c"], distances.ahead)
            terms.append(graph.op("Transpose", bias, perm=[0, 1, 3, 2]))
        return graph.op("Mul", add(graph, *terms), graph.constant(distances.scale))

    return terms_of


def _transpose(graph: EncoderGraph, rows: str, sizes: Heads) -> str:
    """Rows [2 R, H * D] as [1, H, D, 2 R]."""
    heads_of_rows = split_heads(graph, graph.unsqueeze(rows, 0), sizes.queries, sizes.size)
    return graph.op("Transpose", heads_of_rows, perm=[0, 1, 3, 2])


def _choose(graph: EncoderGraph, x: str, table: str, index: str) -> str:
    """Dot products of x [B, H, S, D] with the rows of the table that the index [S, S] names: [B, H, S, S]."""
    products = graph.op("MatMul", x, table)
    size = graph.op("Shape", products, start=0, end=3)
    shape = graph.op("Concat", size, graph.op("Shape", index, start=1, end=2), axis=0)
    return graph.op("GatherElements", products, graph.op("Expand", index, shape), axis=3)


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    width, names = sizes.width, ("query", "key", "value")
    query, key, value = (Linear.of(parts, f"attention.self.{name}_proj", width, width) for name in names)
    return layer_of(parts, sizes, query, key, value)


def layer_of(parts: Tensors, sizes: LayerSizes, query: Linear, key: Linear, value: Linear) -> PostNormLayer:
    """A layer with these projections."""
    output = Linear.of(parts, "attention.output.dense", sizes.width, sizes.width)
    return bert.layer(parts, sizes, Projections(query, key, value, output))


def _convolve(writing: Writing, tensors: Tensors, sizes: LayerSizes, embedded: str, x: str) -> str:
    """x and a convolution of the embeddings over neighbouring tokens, through a norm; 0 in padding."""
    keys, graph = writing.keys, writing.graph
    size = keys.size("conv_kernel_size")
    if size % 2 == 0:
        raise NotDefinedError(f"'conv_kernel_size' is {size}, and odd ones alone are known")
    with graph.scope("conv"):
        weight = tensors.take("encoder.conv.conv.weight", sizes.width, sizes.width, size)
        bias = tensors.take("encoder.conv.conv.bias", sizes.width)
        transposed = graph.op("Transpose", embedded, perm=[0, 2, 1])
        convolved = graph.op("Conv", transposed, graph.weight(weight), graph.weight(bias), pads=[size // 2, size // 2])
        rows = graph.op("Transpose", convolved, perm=[0, 2, 1])
        is_kept = graph.op("Cast", graph.unsqueeze(MASK, 2), to=9)
        rows = activation_of(keys.text("conv_act", default="tanh"))(graph, graph.op("Where", is_kept, rows, 0.0))
        norm = Norm.of(tensors, "encoder.conv.LayerNorm", sizes.width, sizes.epsilon)
        return graph.op("Mul", norm.apply(graph, add(graph, x, rows)), graph.op("Cast", is_kept, to=1))


def classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    """The first token through the pooler, whose activation config.json names, and the classifier."""
    active = activation(writing.keys, "pooler_hidden_act", default="gelu")
    return classify_first(writing, encoded, writing.tensors, "pooler.dense", active)


def token_types(keys: Keys) -> int:
    """How many token types there are."""
    return keys.size("type_vocab_size", default=0, least=0)


_V2 = Version(128100, 24, "attention.self.query_proj.weight", _distances, _layer, _projections)
DEBERTA = Definition(
    "DeBERTa v2",
    of_type("deberta-v2"),
    _encode,
    token_types,
    heads(classes),
)
