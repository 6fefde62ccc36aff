# SPDX-License-Identifier: Apache-2.0
"""The heads after encoders: classifiers of texts and tokens, spans of answers, masked words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from padfree.contract.texts import ANSWERS, CLASSES, FEATURES, MASKED, PAIRS, SENTENCES, SPARSE, TOKENS

from .graph import EncoderGraph
from .layers import Activation, Linear, Norm
from .model import EncoderRows, Outputs, WriteHead, Writing
from .tensors import Tensors, Weight

ROWS, LOGITS = "last_hidden_state", "logits"


def rows(_writing: Writing, encoded: EncoderRows) -> Outputs:
    """No head: the rows of tokens."""
    return {ROWS: (encoded.rows, ("sequence", encoded.width))}


def first_token(graph: EncoderGraph, x: str) -> str:
    """The first row of every sequence: [B, E] of [B, S, E]."""
    return graph.op("Gather", x, graph.constant(0, np.int64), axis=1)


def pooled_classes(pooler: str = "pooler.dense", classifier: str = "classifier") -> WriteHead:
    """BERT's: the first token through the pooler and tanh, then the classifier."""

    def write(writing: Writing, encoded: EncoderRows) -> Outputs:
        dense = Linear.of(encoded.tensors, pooler, encoded.width, encoded.width)
        last = Linear.of(writing.tensors, classifier, writing.labels, encoded.width)
        vector = dense.apply(writing.graph, first_token(writing.graph, encoded.rows))
        return {LOGITS: (last.apply(writing.graph, writing.graph.op("Tanh", vector)), (writing.labels,))}

    return write


def dense_classes(dense: str, classifier: str, active: Activation) -> WriteHead:
    """RoBERTa's: the first token through a layer, an activation and the classifier, all of the head's own."""

    def write(writing: Writing, encoded: EncoderRows) -> Outputs:
        first = Linear.of(writing.tensors, dense, encoded.width, encoded.width)
        last = Linear.of(writing.tensors, classifier, writing.labels, encoded.width)
        vector = active(writing.graph, first.apply(writing.graph, first_token(writing.graph, encoded.rows)))
        return {LOGITS: (last.apply(writing.graph, vector), (writing.labels,))}

    return write


def token_classes(writing: Writing, encoded: EncoderRows) -> Outputs:
    """A classifier of every token."""
    last = Linear.of(writing.tensors, "classifier", writing.labels, encoded.width)
    return {LOGITS: (last.apply(writing.graph, encoded.rows), ("sequence", writing.labels))}


def answers(writing: Writing, encoded: EncoderRows) -> Outputs:
    """Where an answer begins and ends: two numbers per token."""
    both = Linear.of(writing.tensors, "qa_outputs", 2, encoded.width).apply(writing.graph, encoded.rows)
    outputs = {}
    for index, name in enumerate(("start_logits", "end_logits")):
        column = writing.graph.op("Gather", both, writing.graph.constant(index, np.int64), axis=2)
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


def masked_words(
    writing: Writing, encoded: EncoderRows, dense: Linear, active: Activation, norm: Norm, words: Linear
) -> Outputs:
    """A score for every word of the vocabulary at every token: words(norm(active(dense(x))))."""
    graph = writing.graph
    x = norm.apply(graph, active(graph, dense.apply(graph, encoded.rows)))
    return {LOGITS: (words.apply(graph, x), ("sequence", words.weight.shape[0]))}


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
