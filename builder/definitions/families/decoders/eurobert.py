# SPDX-License-Identifier: Apache-2.0
"""EuroBERT: Llama's layers, which see both sides, and a head for masked words (arXiv 2503.05500)."""

from __future__ import annotations

from padfree.contract.texts import MASKED, SPARSE

from ...decoder import WORDS, Decoder
from ...heads import word_scores
from ...model import EncoderRows, Outputs, Writing

_VOCABULARY = 128256


def _mask_head(writing: Writing, encoded: EncoderRows) -> Outputs:
    """A score for every word, by a layer without bias."""
    names = writing.tensors, "lm_head.weight", encoded.tensors, WORDS
    return word_scores(writing, encoded.rows, *names, encoded.width, vocabulary=_VOCABULARY, is_tied=False)


EUROBERT = Decoder(
    _VOCABULARY, 768, 3072, 12, 12, 8192, epsilon=1e-5, has_network_bias=True, is_causal=False
).definition("EuroBERT", "eurobert", {MASKED: _mask_head, SPARSE: _mask_head}, frozenset({"EuroBertModel"}))
