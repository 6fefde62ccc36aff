# SPDX-License-Identifier: Apache-2.0
"""padfree.sentence_transformers: models of sentence-transformers whose encoder is a plan."""

from padfree.contract.installation import naming_extra

with naming_extra("padfree.sentence_transformers", "sentence-transformers"):
    from .attach import attach

__all__ = ["attach"]
