# SPDX-License-Identifier: Apache-2.0
"""Cohere's /v1/rerank and /v2/rerank."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from starlette.routing import Route

from ..errors import ApiError
from ..options import ServeOptions
from .body import check_texts, read_texts
from .calls import Call, Calls
from .ranks import rank

TRUNCATED = "documents were longer than the model takes, and were cut; their numbers are in 'truncated'"


def error_body(error: ApiError) -> Any:
    """As Cohere's clients read it."""
    return {"message": str(error)}


class Cohere:
    """The routes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def routes(self) -> list[Route]:
        """Paths and endpoints."""
        return self._calls.routes({f"/v{version}/rerank": self._reranker(version) for version in (1, 2)}, error_body)

    def _reranker(self, version: int) -> Any:
        async def rerank(call: Call) -> Any:
            body = call.body
            query, documents = body.text("query"), _documents(body.raw("documents"), self._calls.options)
            check_texts([query], "query", self._calls.options)
            most = body.optional_count("top_n")
            with_documents = body.truth("return_documents", False)
            truncate = self._calls.options.truncates
            ranks = await rank(self._calls, call, query, documents, truncate=truncate, raw=False)
            return {
                "id": str(uuid4()),
                "results": [
                    {
                        "index": at,
                        "relevance_score": score,
                        **({"document": {"text": documents[at]}} if with_documents else {}),
                    }
                    for at, score in ranks[:most]
                ],
                "meta": {
                    "api_version": {"version": str(version)},
                    "billed_units": {"search_units": 1},
                    **({"warnings": [TRUNCATED]} if call.truncated else {}),
                },
                **call.truncated,
            }

        return rerank


def _documents(value: Any, options: ServeOptions) -> list[str]:
    """Texts, or objects with one."""
    if isinstance(value, list):
        value = [item.get("text") if isinstance(item, dict) else item for item in value]
    return read_texts(value, "documents", options)
