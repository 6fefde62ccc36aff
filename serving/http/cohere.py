# SPDX-License-Identifier: Apache-2.0
"""Cohere's rerank and embed, each of two versions of the API."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import uuid4

from padfree.contract.texts import LEFT, RIGHT
from padfree.runtime.answers import normalize_vectors
from padfree.runtime.text import EMBED
from starlette.routing import Route

from ..errors import ApiError, validation_error
from ..options import ServeOptions
from .body import Body, check_texts, read_texts
from .calls import Call, Calls
from .openai import prompt_text
from .ranks import rank
from .vectors import VECTOR_KINDS, encode, floats, shorten

TRUNCATED = "{} were longer than the model takes, and were cut; their numbers are in 'truncated'"
OTHER_KINDS = ("classification", "clustering")
"""Values of `input_type` beside those for queries and documents; they choose the prompts that are called so."""
ENDS = {"END": RIGHT, "START": LEFT}
"""Values of `truncate`, and the end of a text that is cut then; "NONE" refuses long texts."""


def error_body(error: ApiError) -> Any:
    """As Cohere's clients read it."""
    return {"message": str(error)}


class Cohere:
    """The routes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def routes(self) -> list[Route]:
        """Paths and endpoints."""
        works = {
            **{f"/v{version}/rerank": partial(rerank, self._calls, version) for version in (1, 2)},
            **{f"/v{version}/embed": partial(self._embed, version) for version in (1, 2)},
        }
        return self._calls.routes(works, error_body)

    async def _embed(self, version: int, call: Call) -> Any:
        """Vectors of length 1 in each of the types that are asked for."""
        calls, body = self._calls, call.body
        calls.check_task(EMBED)
        if body.optional_list("images") or body.optional_list("inputs"):
            raise validation_error(
                "'images' and 'inputs' are not answered, because the model reads texts; send 'texts'"
            )
        texts = read_texts(body.raw("texts"), "texts", calls.options)
        kinds, dimensions = _kinds(body), body.optional_count("output_dimension")
        truncate, prompt = _truncates(calls, body), _prompt(calls, body)
        rows = await calls.rows(call, [prompt + text for text in texts], kind="embed", truncate=truncate, prompt=prompt)
        vectors = normalize_vectors(shorten(floats(rows), dimensions))
        by_kind = {kind: encode(vectors, kind) for kind in kinds or ("float",)}
        assert call.answer is not None
        return {
            "id": str(uuid4()),
            "response_type": "embeddings_by_type" if kinds or version > 1 else "embeddings_floats",
            "embeddings": by_kind if kinds or version > 1 else by_kind["float"],
            "texts": texts,
            "meta": _meta(call, version, "input_tokens", call.answer.tokens, "texts"),
            **call.truncated,
        }


async def rerank(calls: Calls, version: int, call: Call) -> Any:
    """Documents in the order of how well they answer a query."""
    body = call.body
    query, documents = body.text("query"), _documents(body.raw("documents"), calls.options)
    check_texts([query], "query", calls.options)
    most = body.optional_count("top_n")
    with_documents, raw = body.truth("return_documents", False), body.truth("raw_scores", False)
    ranks = await rank(calls, call, query, documents, truncate=calls.options.truncates, raw=raw)
    assert call.answer is not None
    tokens = call.answer.tokens
    return {
        "id": str(uuid4()),
        "object": "rerank",
        "model": calls.served_model.name,
        "results": [
            {
                "index": at,
                "relevance_score": score,
                **({"document": {"text": documents[at]}} if with_documents else {}),
            }
            for at, score in ranks[:most]
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": _meta(call, version, "search_units", 1, "documents"),
        **call.truncated,
    }


def _meta(call: Call, version: int, unit: str, units: int, name: str) -> dict[str, Any]:
    """What Cohere tells beside an answer; `name` is what the request calls its texts."""
    return {
        "api_version": {"version": str(version)},
        "billed_units": {unit: units},
        **({"warnings": [TRUNCATED.format(name)]} if call.truncated else {}),
    }


def _kinds(body: Body) -> list[str]:
    """The types of numbers that are asked for; none where the field is missing."""
    kinds = body.optional_list("embedding_types")
    for kind in kinds:
        if kind not in VECTOR_KINDS:
            raise validation_error(f"'embedding_types' has {kind!r:.60}, allowed: {', '.join(VECTOR_KINDS)}")
    return kinds


def _truncates(calls: Calls, body: Body) -> bool:
    """Whether long texts are cut, at the end that the tokenizer's settings say; ApiError for the other end."""
    if body.optional_text("truncate") is None:
        return calls.options.truncates
    side = calls.served_model.tokenizer.truncation_side
    allowed_values = tuple(value for value, end in ENDS.items() if end == side)
    return body.choice("truncate", (*allowed_values, "NONE")) in ENDS


def _prompt(calls: Calls, body: Body) -> str:
    """The prompt for the kind of texts that a request has; the default one where the model has none for these."""
    kind = body.optional_text("input_type")
    if kind not in OTHER_KINDS:
        return prompt_text(calls, body)
    served_model = calls.served_model
    return served_model.prompt(kind if kind in served_model.prompts else None)


def _documents(value: Any, options: ServeOptions) -> list[str]:
    """Texts, or objects with one."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            if isinstance(item, dict) and "text" not in item:
                raise validation_error(
                    f"'documents' {at} is an object without 'text'; send a text, or an object with it"
                )
        value = [item["text"] if isinstance(item, dict) else item for item in value]
    return read_texts(value, "documents", options)
