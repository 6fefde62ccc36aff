# SPDX-License-Identifier: Apache-2.0
"""padfree.sentence_transformers: models of sentence-transformers whose encoder is a plan."""

from .attach import attach

__all__ = ["attach"]
