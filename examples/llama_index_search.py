# SPDX-License-Identifier: Apache-2.0
"""Searches texts with LlamaIndex, whose vectors come from `padfree serve`: llama_index_search.py http://HOST:PORT/v1."""

import sys

from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.openai import OpenAIEmbedding

TEXTS = [
    "The parcel arrives within three days.",
    "Our kitchen closes at ten in the evening.",
    "Passwords have at least twelve letters.",
]


def main(url: str) -> None:
    """Prints the text that is nearest to a question, and how near it is."""
    embedding = OpenAIEmbedding(
        api_base=url,
        api_key="none",  # the server's --api-key, if it has one
        model_name="any",  # the server has one model and does not look at the name
        embed_batch_size=256,
    )
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=embedding)
    for result in index.as_retriever(similarity_top_k=1).retrieve("how long does shipping take?"):
        print(f"{result.score:.3f} {result.node.get_content()}")


if __name__ == "__main__":
    main(sys.argv[1])
