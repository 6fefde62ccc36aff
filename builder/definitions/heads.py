# SPDX-License-Identifier: Apache-2.0
"""The heads after encoders: classifiers of texts and tokens, spans of answers, masked words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from padfree.contract.texts import ANSWERS, CLASSES, FEATURES, MASKED, PAIRS, SENTENCES, SPARSE, TOKENS

from .encoder import VOCABULARY, WORDS
from .graph import IDS, MASK, EncoderGraph
from .layers import Activation, Linear, Norm, activation, activation_of
from .model import EncoderRows, Outputs, WriteHead, Writing
from .tensors import Tensors

ROWS, LOGITS = "last_hidden_state", "logits"


def rows(_writing: Writing, encoded: EncoderRows) -> Outputs:
    """No head: the rows of tokens."""
    return {ROWS: (encoded.rows, ("sequence", encoded.width))}


ROWS_ALONE: Mapping[str, WriteHead] = MappingProxyType({FEATURES: rows, SENTENCES: rows})
"""Heads by task, for families that have none."""


def first_token(graph: EncoderGraph, x: str) -> str:
    """The first row of every sequence: [B, E] of [B, S, E]."""
    return graph.op("Gather", x, 0, axis=1)


def mean(graph: EncoderGraph, x: str) -> str:
    """The mean of a sequence's rows: [B, E] of [B, S, E]."""
    is_token = graph.unsqueeze(graph.op("Cast", MASK, to=1), -1)
    total = graph.op("ReduceSum", graph.op("Mul", x, is_token), [1], keepdims=0)
    return graph.op("Div", total, graph.op("ReduceSum", is_token, [1], keepdims=0))


def pooled_classes(pooler: str = "pooler.dense") -> WriteHead:
    """BERT's: the first token through the pooler and tanh, then the classifier."""
    tanh = activation_of("tanh")
    return lambda writing, encoded: classify_first(writing, encoded, encoded.tensors, pooler, tanh)


def dense_classes(dense: str, classifier: str, active: Activation) -> WriteHead:
    """RoBERTa's: the first token through a layer, an activation and the classifier, all of the head's own."""
    return lambda writing, encoded: classify_first(writing, encoded, writing.tensors, dense, active, classifier)


def classify_first(
    writing: Writing,
    encoded: EncoderRows,
    tensors: Tensors,
    dense: str,
    active: Activation,
    classifier: str = "classifier",
) -> Outputs:
    """The first token through a layer of these tensors, an activation and the classifier."""
    graph, width = writing.graph, encoded.width
    first = Linear.of(tensors, dense, width, width)
    last = Linear.of(writing.tensors, classifier, writing.labels, width)
    vector = active(graph, first.apply(graph, first_token(graph, encoded.rows)))
    return {LOGITS: (last.apply(graph, vector), (writing.labels,))}


def _last_token_classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    """A layer without bias on the last token of a text whose id is not that of padding, as transformers has it."""
    keys, graph = writing.keys, writing.graph
    padding = keys.size("pad_token_id", least=0)
    is_token = graph.op("Not", graph.op("Equal", IDS, padding))
    slot_numbers = graph.op("Mul", graph.op("Cast", is_token, to=7), graph.positions())
    last_index = graph.op("ArgMax", graph.op("Cast", slot_numbers, to=1), axis=1, keepdims=1)
    wide = graph.op("Expand", graph.unsqueeze(last_index, 2), [1, 1, encoded.width])
    row = graph.op("Squeeze", graph.op("GatherElements", encoded.rows, wide, axis=1), [1])
    last = Linear.of(writing.tensors, "score", writing.labels, encoded.width, bias=False)
    return {LOGITS: (last.apply(graph, row), (writing.labels,))}


LAST_TOKEN_CLASSES: Mapping[str, WriteHead] = MappingProxyType(
    {CLASSES: _last_token_classes, PAIRS: _last_token_classes}
)
"""Heads by task, for decoders."""


def token_classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    """A classifier of every token."""
    last = Linear.of(writing.tensors, "classifier", writing.labels, encoded.width)
    return {LOGITS: (last.apply(writing.graph, encoded.rows), ("sequence", writing.labels))}


def answers(writing: Writing, encoded: EncoderRows) -> Outputs:
    """Where an answer begins and ends: two numbers per token."""
    both = Linear.of(writing.tensors, "qa_outputs", 2, encoded.width).apply(writing.graph, encoded.rows)
    return {
        name: (writing.graph.op("Gather", both, index, axis=2), ("sequence",))
        for index, name in enumerate(("start_logits", "end_logits"))
    }


def word_scores(
    writing: Writing,
    x: str,
    head: Tensors,
    own: str,
    encoder: Tensors,
    tied: str,
    width: int,
    *,
    vocabulary: int,
    bias: str = "",
    is_tied: bool = True,
) -> Outputs:
    """A score for every word of the vocabulary at every token of x [B, S, W].

    The weights [V, W] are the head's own where the file has them, otherwise the embeddings'.

    Args:
        writing: the model.
        x: what the head made of the tokens' rows.
        head: where its own weights lie.
        own: their name there.
        encoder: where the embeddings lie.
        tied: their name there.
        width: W.
        vocabulary: the default of vocab_size.
        bias: its name in the head; "" for none.
        is_tied: the default of tie_word_embeddings.
    """
    keys, shape = writing.keys, (writing.keys.size("vocab_size", default=vocabulary), width)
    is_own = not keys.boolean("tie_word_embeddings", default=is_tied) or own in head
    table = head.take(own, *shape) if is_own else encoder.take(tied, *shape)
    scores = Linear(table, head.take(bias, shape[0]) if bias else None).apply(writing.graph, x)
    return {LOGITS: (scores, ("sequence", shape[0]))}


def word_head(
    prefix: str,
    dense: str,
    norm: str,
    words: str = "decoder",
    *,
    vocabulary: int = VOCABULARY,
    active: str = "gelu",
    active_key: str = "",
    is_narrow: bool = False,
    epsilon: float | None = None,
) -> WriteHead:
    """A score for every word of the vocabulary at every token: words(norm(active(dense(x)))).

    Args:
        prefix: how names of the head's tensors begin; `words` has names of its own, or its bias is named "bias".
        dense: a layer's name.
        norm: a layer's name.
        words: a layer's name.
        vocabulary: the default of vocab_size.
        active: the activation, or the default of `active_key`.
        active_key: the entry that names the activation; "" for none.
        is_narrow: whether embeddings, and so the head, have a width of their own.
        epsilon: the norm's; None: what layer_norm_eps says.
    """

    def write(writing: Writing, encoded: EncoderRows) -> Outputs:
        keys, graph = writing.keys, writing.graph
        head = writing.tensors.below(prefix, member=f"{dense}.weight")
        width = keys.size("embedding_size", default=128) if is_narrow else encoded.width
        bias = f"{words}.bias" if f"{words}.bias" in head else "bias"
        activate = activation(keys, active_key, default=active) if active_key else activation_of(active)
        small = keys.number("layer_norm_eps", default=1e-12) if epsilon is None else epsilon
        x = activate(graph, Linear.of(head, dense, width, encoded.width).apply(graph, encoded.rows))
        x = Norm.of(head, norm, width, small).apply(graph, x)
        own = f"{words}.weight"
        return word_scores(writing, x, head, own, encoded.tensors, WORDS, width, vocabulary=vocabulary, bias=bias)

    return write


def heads(classes: WriteHead, masked: WriteHead | None = None) -> Mapping[str, WriteHead]:
    """Heads by task, for families whose heads for tokens and answers are BERT's."""
    writers = {**ROWS_ALONE, CLASSES: classes, PAIRS: classes, TOKENS: token_classes, ANSWERS: answers}
    return MappingProxyType(writers if masked is None else {**writers, MASKED: masked, SPARSE: masked})
