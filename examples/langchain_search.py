# SPDX-License-Identifier: Apache-2.0
"""Searches texts with LangChain, whose vectors come from `padfree serve`: langchain_search.py http://HOST:PORT/v1."""

import sys

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

TEXTS = [
    "The parcel arrives within three days.",
    "Our kitchen closes at ten in the evening.",
    "Passwords have at least twelve letters.",
]


def main(url: str) -> None:
    """Prints the text that is nearest to a question, and how near it is."""
    embeddings = OpenAIEmbeddings(
        base_url=url,
        api_key="none",  # the server's --api-key, if it has one
        model="any",  # the server has one model and does not look at the name
        check_embedding_ctx_length=False,  # otherwise LangChain sends token ids of OpenAI's own models
    )
    store = InMemoryVectorStore(embeddings)
    store.add_texts(TEXTS)
    for document, score in store.similarity_search_with_score("how long does shipping take?", k=1):
        print(f"{score:.3f} {document.page_content}")


if __name__ == "__main__":
    main(sys.argv[1])
