# SPDX-License-Identifier: Apache-2.0
"""The definitions, one module per family of encoders."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Definition
from . import (
    albert,
    bert,
    deberta_v1,
    deberta_v2,
    decoders,
    distilbert,
    electra,
    gte,
    jina_reranker,
    jina_v2,
    jina_v3,
    modernbert,
    mpnet,
    nomic,
    roberta,
    t5,
)

DEFINITIONS: Sequence[Definition] = (
    bert.BERT,
    roberta.ROBERTA,
    distilbert.DISTILBERT,
    mpnet.MPNET,
    modernbert.MODERNBERT,
    nomic.NOMIC,
    gte.GTE,
    jina_v2.JINA_V2,
    jina_v3.JINA_V3,
    jina_reranker.JINA_RERANKER,
    *decoders.DECODERS,
    deberta_v2.DEBERTA_V2,
    deberta_v1.DEBERTA_V1,
    t5.T5,
    electra.ELECTRA,
    albert.ALBERT,
)
