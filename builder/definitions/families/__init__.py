# SPDX-License-Identifier: Apache-2.0
"""The definitions, one module a family of encoders."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Definition
from . import albert, bert, distilbert, electra, mpnet, roberta

DEFINITIONS: Sequence[Definition] = (
    bert.BERT,
    roberta.ROBERTA,
    distilbert.DISTILBERT,
    mpnet.MPNET,
    electra.ELECTRA,
    albert.ALBERT,
)
