# SPDX-License-Identifier: Apache-2.0
"""From a classifier's numbers to labels and scores, as Hugging Face's pipelines have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.texts import REGRESSION, SEVERAL_LABELS, TextInfo

from ..errors import SessionError

Floats = npt.NDArray[np.float32]

LEAST_SCORE = 0.5
"""If a text may have several labels, it has those with this score or more."""


@dataclass(frozen=True)
class Classification:
    """What a classifier says about a text.

    Attributes:
        label: the label with the highest score.
        score: its score.
        labels: all labels that the text has: `label` alone, or, where a text may have several, those with a score of
            0.5 or more, the highest first.
        scores: every label with its score, in the model's order: probabilities that add up to 1; with several labels,
            or only one, a probability each; with regression, the model's numbers.
    """

    label: str
    score: float
    labels: tuple[str, ...]
    scores: Mapping[str, float]


def check_top(top: Any) -> None:
    """Raises SessionError unless `top` documents can be given: None is all of them."""
    if top is not None and (isinstance(top, bool) or not isinstance(top, int | np.integer) or top < 1):
        raise SessionError(f"top is {top!r}, allowed: a whole number of at least 1; leave it out for all documents")


def classify(values: npt.NDArray[Any], info: TextInfo) -> list[Classification]:
    """What a classifier's rows [B, K], or [B], say.

    Args:
        values: as the model gives them.
        info: names of labels, what kind of classes they are, and what the numbers have gone through already.
    """
    numbers = np.asarray(values, np.float32).reshape(len(values), -1)
    probabilities = class_scores(numbers, info.problem, activated=info.is_activated)
    names = class_names(info.labels, probabilities.shape[1])
    results = []
    for row in probabilities:
        order = np.argsort(-row, kind="stable").tolist()
        chosen_classes = [at for at in order if row[at] >= LEAST_SCORE] if info.problem == SEVERAL_LABELS else order[:1]
        scores = {name: float(score) for name, score in zip(names, row, strict=True)}
        results.append(
            Classification(names[order[0]], float(row[order[0]]), tuple(names[at] for at in chosen_classes), scores)
        )
    return results


def class_scores(values: Floats, problem: str, *, activated: bool) -> Floats:
    """Scores [B, K] of a classifier's numbers: softmax of classes, sigmoid of several labels or of one, or neither.

    Args:
        values: as the model gives them.
        problem: what the classes are, as TextInfo has it.
        activated: whether the model has applied softmax or sigmoid already.
    """
    if problem == REGRESSION or activated:
        return values
    if problem == SEVERAL_LABELS or values.shape[1] == 1:
        return sigmoid(values)
    return softmax(values)


def label_name(labels: Sequence[str], at: int) -> str:
    """The name of a class; as Hugging Face calls those that have none."""
    return labels[at] if at < len(labels) else f"LABEL_{at}"


def class_names(labels: Sequence[str], count: int) -> tuple[str, ...]:
    """The names of `count` classes, all different: where several share a label, only the first has it."""
    names: dict[str, None] = {}
    for at in range(count):
        name = label_name(labels, at)
        name = f"LABEL_{at}" if name in names else name
        while name in names:
            name += "_"
        names[name] = None
    return tuple(names)


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(np.exp(-np.logaddexp(np.float32(0), -logits)), np.float32)


def softmax(logits: Floats) -> Floats:
    """Probabilities of every row."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True), np.float32)


def normalize_vectors(vectors: Floats) -> Floats:
    """Vectors of length 1; zeros stay zeros."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(norms == 0, np.float32(1), norms), np.float32)
