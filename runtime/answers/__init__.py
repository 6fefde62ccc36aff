# SPDX-License-Identifier: Apache-2.0
"""From texts to answers in a program: vectors, scores in order, labels, and words with labels."""

from .scores import Classified, Floats, class_scores, classified, label_name, normalized, sigmoid
from .tags import Tagged, join, words_of
from .text_model import CLASSIFY, ENCODE, SCORE, TAG, Ranked, TextModel, TokenRows

__all__ = [
    "CLASSIFY",
    "ENCODE",
    "SCORE",
    "TAG",
    "Classified",
    "Floats",
    "Ranked",
    "Tagged",
    "TextModel",
    "TokenRows",
    "class_scores",
    "classified",
    "join",
    "label_name",
    "normalized",
    "sigmoid",
    "words_of",
]
