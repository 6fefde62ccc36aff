# SPDX-License-Identifier: Apache-2.0
"""The heads after encoders: classifiers of texts and tokens, spans of answers, masked words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from padfree.contract.texts import ANSWERS, CLASSES, FEATURES, MASKED, PAIRS, SENTENCES, SPARSE, TOKENS

from .graph import EncoderGraph
from .layers import Activation, Linear, activation_of
from .model import EncoderRows, Outputs, WriteHead, Writing
from .tensors import Tensors, Weight

ROWS, LOGITS = "last_hidden_state", "logits"


def rows(_writing: Writing, encoded: EncoderRows) -> Outputs:
    """No head: the rows of tokens."""
    return {ROWS: (encoded.rows, ("sequence", encoded.width))}


def first_token(graph: EncoderGraph, x: str) -> str:
    """The first row of every sequence: [B, E] of [B, S, E]."""
    return graph.op("Gather", x, 0, axis=1)


def pooled_classes(pooler: str = "pooler.dense") -> WriteHead:
    """BERT's: the first token through the pooler and tanh, then the classifier."""

    def write(writing: Writing, encoded: EncoderRows) -> Outputs:
        return classify_first(writing, encoded, encoded.tensors, pooler, activation_of("tanh"))

    return write


def dense_classes(dense: str, classifier: str, active: Activation) -> WriteHead:
    """RoBERTa's: the first token through a layer, an activation and the classifier, all of the head's own."""

    def write(writing: Writing, encoded: EncoderRows) -> Outputs:
        return classify_first(writing, encoded, writing.tensors, dense, active, classifier)

    return write


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


def token_classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    """A classifier of every token."""
    last = Linear.of(writing.tensors, "classifier", writing.labels, encoded.width)
    return {LOGITS: (last.apply(writing.graph, encoded.rows), ("sequence", writing.labels))}


def answers(writing: Writing, encoded: EncoderRows) -> Outputs:
    """Where an answer begins and ends: two numbers per token."""
    both = Linear.of(writing.tensors, "qa_outputs", 2, encoded.width).apply(writing.graph, encoded.rows)
    outputs = {}
    for index, name in enumerate(("start_logits", "end_logits")):
        column = writing.graph.op("Gather", both, index, axis=2)
        outputs[name] = (column, ("sequence",))
    return outputs


def own_or_tied(
    head: Tensors, own: str, encoder: Tensors, tied: str, shape: tuple[int, int], *, is_tied: bool
) -> Weight:
    """The weight from rows to words [V, E]: its own where the file has it, otherwise that of the embeddings.

    Args:
        head: where its own lies.
        own: its name there.
        encoder: where the embeddings lie.
        tied: their name there.
        shape: of both.
        is_tied: whether config.json says that both are the same.
    """
    return head.take(own, *shape) if own in head or not is_tied else encoder.take(tied, *shape)


def heads(classes: WriteHead, masked: WriteHead | None = None) -> Mapping[str, WriteHead]:
    """Heads by task, for families whose heads for tokens and answers are BERT's."""
    writers = {
        FEATURES: rows,
        SENTENCES: rows,
        CLASSES: classes,
        PAIRS: classes,
        TOKENS: token_classes,
        ANSWERS: answers,
    }
    return MappingProxyType(writers if masked is None else {**writers, MASKED: masked, SPARSE: masked})
