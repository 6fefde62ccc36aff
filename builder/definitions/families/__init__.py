# SPDX-License-Identifier: Apache-2.0
"""The definitions, one module a family of encoders."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Definition
from . import albert, bert, decoders, distilbert, electra, gemma, gte, jina_v2, modernbert, mpnet, nomic, roberta

DEFINITIONS: Sequence[Definition] = (
    bert.BERT,
    roberta.ROBERTA,
    distilbert.DISTILBERT,
    mpnet.MPNET,
    modernbert.MODERNBERT,
    nomic.NOMIC,
    gte.GTE,
    jina_v2.JINA_V2,
    *decoders.DECODERS,
    gemma.GEMMA,
    electra.ELECTRA,
    albert.ALBERT,
)
