# SPDX-License-Identifier: Apache-2.0
"""What all versions of DeBERTa share: scores with terms by embeddings of distances (arXiv 2006.03654)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..attention import Projections, Scoring, mask
from ..blocks import LayerSizes, PostNormLayer
from ..distances import Distances
from ..encoder import WORDS, encoder_tensors
from ..errors import NotDefinedError
from ..graph import MASK
from ..heads import classify_first, heads
from ..keys import Keys
from ..layers import Linear, Norm, activation, add, position_rows, types, words
from ..model import EncoderRows, Outputs, Writing
from ..tensors import Tensors
from . import bert

_TERMS = {"c2p", "p2c"}


@dataclass(frozen=True)
class Version:
    """The differences between the versions of DeBERTa.

    Attributes:
        vocabulary, layers: defaults of sizes.
        member: a tensor that every layer has.
        distances: writes the embeddings of distances, for some terms of scores.
        layer: a layer's tensors.
        projections: the layers that make keys and queries from embeddings of distances, for some terms.
        convolve: adds what it makes of the embeddings [B, S, E] to the first layer's rows [B, S, E].
    """

    vocabulary: int
    layers: int
    member: str
    distances: Callable[[Writing, Tensors, LayerSizes, tuple[str, ...]], Distances]
    layer: Callable[[Tensors, LayerSizes], PostNormLayer]
    projections: Callable[[Keys, Tensors, LayerSizes, tuple[str, ...]], dict[str, Linear]]
    convolve: Callable[[Writing, Tensors, LayerSizes, str, str], str] = lambda *arguments: arguments[-1]


def encode(writing: Writing, sizes: LayerSizes, version: Version) -> EncoderRows:
    """The encoder of one version."""
    keys, graph, tensors = writing.keys, writing.graph, encoder_tensors(writing, "deberta.")
    keys.ignore("pooler_dropout", "pooler_hidden_act", "legacy", "tie_word_embeddings", "padding_idx", "pos_att_type")
    keys.only(is_decoder=False, pooler_hidden_size=sizes.width)
    x = embedded = _embed(writing, tensors, sizes, version.vocabulary)
    seen, terms = mask(graph), _terms_of(keys)
    distances = version.distances(writing, tensors, sizes, terms)
    for number in range(keys.size("num_hidden_layers", default=version.layers)):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"encoder.layer.{number}.", member=version.member)
            more = distances.terms(graph, sizes.heads, version.projections(keys, parts, sizes, terms))
            x = version.layer(parts, sizes).apply(graph, x, sizes.heads, Scoring(distances.scale, seen, more=more))
        x = version.convolve(writing, tensors, sizes, embedded, x) if number == 0 else x
    tensors.ignore("position_ids", "lm_predictions.", "mask_predictions.", "pooler.", "lm_head.")
    return EncoderRows(x, sizes.width, tensors)


def _terms_of(keys: Keys) -> tuple[str, ...]:
    """Which terms scores have besides the product of queries and keys."""
    names = keys.raw.get("pos_att_type")
    terms = (
        tuple(item.strip() for item in names.lower().split("|"))
        if isinstance(names, str)
        else keys.texts("pos_att_type", ())
    )
    if not keys.boolean("relative_attention", default=False) or not terms or not _TERMS.issuperset(terms):
        raise NotDefinedError(f"'relative_attention' with 'pos_att_type' of {', '.join(sorted(_TERMS))} alone is known")
    return terms


def _embed(writing: Writing, tensors: Tensors, sizes: LayerSizes, vocabulary: int) -> str:
    """Word embeddings and, where the model has them, those of positions and types, through a norm; 0 in padding."""
    keys, graph = writing.keys, writing.graph
    narrow = keys.size("embedding_size", default=sizes.width)
    with graph.scope("embeddings"):
        count, rows = keys.size("vocab_size", default=vocabulary), keys.size("max_position_embeddings", default=512)
        x = words(graph, tensors.take(WORDS, count, narrow))
        if keys.boolean("position_biased_input", default=True):
            x = add(graph, x, position_rows(graph, tensors.take("embeddings.position_embeddings.weight", rows, narrow)))
        if writing.kinds:
            table = tensors.take("embeddings.token_type_embeddings.weight", writing.kinds, narrow)
            x = add(graph, x, types(graph, table))
        if narrow != sizes.width:
            x = Linear.of(tensors, "embeddings.embed_proj", sizes.width, narrow, bias=False).apply(graph, x)
        x = Norm.of(tensors, "embeddings.LayerNorm", sizes.width, sizes.epsilon).apply(graph, x)
    return graph.op("Mul", x, graph.op("Cast", graph.unsqueeze(MASK, 2), to=1))


def furthest_of(keys: Keys) -> int:
    """The largest distance that has an embedding of its own."""
    furthest = keys.raw.get("max_relative_positions", -1)
    keys.ignore("max_relative_positions")
    return furthest if isinstance(furthest, int) and furthest > 0 else keys.size("max_position_embeddings", default=512)


def layer_of(parts: Tensors, sizes: LayerSizes, query: Linear, key: Linear, value: Linear) -> PostNormLayer:
    """A layer with these projections."""
    output = Linear.of(parts, "attention.output.dense", sizes.width, sizes.width)
    return bert.layer(parts, sizes, Projections(query, key, value, output))


def _classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    """The first token through the pooler, whose activation config.json names, and the classifier."""
    active = activation(writing.keys, "pooler_hidden_act", default="gelu")
    return classify_first(writing, encoded, writing.tensors, "pooler.dense", active)


def token_types(keys: Keys) -> int:
    """How many token types there are."""
    return keys.size("type_vocab_size", default=0, least=0)


HEADS = heads(_classes)
