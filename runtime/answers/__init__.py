# SPDX-License-Identifier: Apache-2.0
"""From texts to answers in a program: vectors, scores in order, labels, and words with labels."""

from .max_sim import max_sims, token_vectors
from .scores import Classification, Floats, class_names, class_scores, classify, normalize_vectors, sigmoid
from .tags import TaggedSpan, join, words_of
from .text_model import CLASSIFY, ENCODE, LATE, SCORE, TAG, RankedDocument, TextModel, TokenRows

__all__ = [
    "CLASSIFY",
    "ENCODE",
    "LATE",
    "SCORE",
    "TAG",
    "Classification",
    "Floats",
    "RankedDocument",
    "TaggedSpan",
    "TextModel",
    "TokenRows",
    "class_names",
    "class_scores",
    "classify",
    "join",
    "max_sims",
    "normalize_vectors",
    "sigmoid",
    "token_vectors",
    "words_of",
]
