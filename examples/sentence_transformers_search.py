# SPDX-License-Identifier: Apache-2.0
"""Retrieval with a reranker in sentence-transformers, both encoders as plans, without padding.

sentence_transformers_search.py FOLDER PLAN RERANKER_FOLDER RERANKER_PLAN; the plans are `padfree build` of the folders.
"""

import sys

from padfree.sentence_transformers import attach
from sentence_transformers import CrossEncoder, SentenceTransformer, util

TEXTS = [
    "The parcel arrives within three days.",
    "Our kitchen closes at ten in the evening.",
    "Passwords have at least twelve letters.",
]
QUESTION = "how long does shipping take?"


def main(folder: str, plan: str, reranker_folder: str, reranker_plan: str) -> None:
    """Prints the text that answers a question best, and its score."""
    # Weights are loaded once, compared with the plans, and dropped; everything else stays as it was.
    model = attach(SentenceTransformer(folder), plan)
    reranker = attach(CrossEncoder(reranker_folder), reranker_plan)
    (hits,) = util.semantic_search(model.encode_query([QUESTION]), model.encode_document(TEXTS), top_k=2)
    texts = [TEXTS[hit["corpus_id"]] for hit in hits]
    best = reranker.rank(QUESTION, texts, top_k=1)[0]
    print(f"{best['score']:.3f} {texts[best['corpus_id']]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
