# SPDX-License-Identifier: Apache-2.0
"""Texts to a Triton server with a repository of `padfree triton`: triton_client.py HOST:PORT NAME, over gRPC."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from tritonclient import grpc

TEXTS = [
    "The parcel arrives within three days.",
    "Our kitchen closes at ten in the evening.",
    "Passwords have at least twelve letters.",
]
OUTPUT = "sentence_embedding"  # ask for what you need: a model's other outputs would be sent, too


def embed(client: grpc.InferenceServerClient, model: str, text: str) -> npt.NDArray[np.float32]:
    """The vector of one text. The server puts the texts of callers at the same time into one run."""
    tensor = grpc.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=object))
    answer = client.infer(f"{model}_text", [tensor], outputs=[grpc.InferRequestedOutput(OUTPUT)], client_timeout=30.0)
    return answer.as_numpy(OUTPUT)[0]


def main(url: str, model: str) -> None:
    """Prints the text that is nearest to a question, and how near it is."""
    with grpc.InferenceServerClient(url) as client, ThreadPoolExecutor(8) as pool:
        vectors = np.stack(list(pool.map(lambda text: embed(client, model, text), TEXTS)))
        scores = vectors @ embed(client, model, "how long does shipping take?")
    print(f"{scores.max():.3f} {TEXTS[scores.argmax()]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
