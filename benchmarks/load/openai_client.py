# SPDX-License-Identifier: Apache-2.0
"""Texts over OpenAI's /v1/embeddings, vectors in base64, as callers of `padfree serve` send and get them."""

from __future__ import annotations

import json
import urllib.request
from base64 import b64decode

import numpy as np

from .client import Array, Target
from .http_client import END_OF_HEAD, HttpClient
from .traffic import Request

PATH = "/v1/embeddings"


class OpenAIClient(HttpClient):
    """Like HttpClient, for servers of OpenAI's API."""

    def _message(self, target: Target, request: Request) -> bytes:
        content = body(target, request)
        lines = [f"POST {PATH} HTTP/1.1", f"Host: {target.address}", f"Content-Length: {len(content)}"]
        return "\r\n".join(lines).encode() + END_OF_HEAD + content

    def _output_type(self, _target: Target) -> np.dtype[np.generic]:
        return np.dtype("<f4")

    def _values(self, received: bytearray) -> Array:
        return values(bytes(received[received.find(END_OF_HEAD) + len(END_OF_HEAD) :]))


def body(target: Target, request: Request) -> bytes:
    """A request's JSON."""
    return json.dumps({"model": target.model, "input": request.texts, "encoding_format": "base64"}).encode()


def values(answer: bytes) -> Array:
    """The vectors of an answer's JSON, [texts, values]."""
    vectors = [np.frombuffer(b64decode(item["embedding"]), "<f4") for item in json.loads(answer)["data"]]
    return np.stack(vectors)


def ask(target: Target, request: Request) -> Array:
    """The answer to a single request."""
    asked = urllib.request.Request(f"http://{target.address}{PATH}", body(target, request))
    with urllib.request.urlopen(asked) as answer:
        return values(answer.read())
