# SPDX-License-Identifier: Apache-2.0
"""OpenAI's /v1/embeddings and /v1/models."""

from __future__ import annotations

from typing import Any

from padfree.runtime.answers import normalize_vectors
from padfree.runtime.text import EMBED
from padfree.runtime.texts import unknown_prompt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import VALIDATION, ApiError, validation_error
from .body import Body, read_inputs
from .calls import Call, Calls
from .texts import Ids
from .vectors import encode, floats, shorten

FORMATS = ("float", "base64")
KINDS = ("query", "search_query", "document", "passage", "search_document")


def error_body(error: ApiError) -> Any:
    """As OpenAI's clients read it, and, beside that, as TEI writes it on this route."""
    plain = {"message": str(error), "code": error.status, "type": error.kind}
    return {"error": {**plain, "param": None}, **plain}


class OpenAI:
    """The routes."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def routes(self) -> list[Route]:
        """Paths and endpoints."""
        embeddings = dict.fromkeys(("/v1/embeddings", "/embeddings"), self._embeddings)
        models = self._calls.with_key(self._models, error_body)
        return [
            *self._calls.routes(embeddings, error_body),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", models),
        ]

    async def _embeddings(self, call: Call) -> Any:
        served_model, options, body = self._calls.served_model, self._calls.options, call.body
        texts, ids, prompt = read_texts_or_ids(self._calls, call, "input", EMBED)
        kind = body.choice("encoding_format", FORMATS)
        dimensions = body.optional_count("dimensions")
        truncate = options.truncates
        rows = floats(await self._calls.rows(call, texts, kind="embed", truncate=truncate, ids=ids, prompt=prompt))
        vectors = normalize_vectors(shorten(rows, dimensions))
        assert call.answer is not None
        tokens = call.answer.tokens
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": at, "embedding": vector}
                for at, vector in enumerate(encode(vectors, kind))
            ],
            "model": served_model.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            **call.truncated,
        }

    async def _models(self, request: Request) -> Response:
        model = {"id": self._calls.served_model.name, "object": "model", "created": 0, "owned_by": "padfree"}
        model_name = request.path_params.get("name")
        if model_name is None:
            return JSONResponse({"object": "list", "data": [model]})
        if model_name != self._calls.served_model.name:
            return JSONResponse(error_body(ApiError(404, VALIDATION, f"no model '{model_name}' is served")), 404)
        return JSONResponse(model)


def read_texts_or_ids(calls: Calls, call: Call, name: str, task: str | None = None) -> tuple[list[str], list[Ids], str]:
    """Texts of a field, which begin with the prompt that is asked for, or ids instead of them; and that prompt.

    Raises:
        ApiError: the field holds neither, or the model is not for the task.
    """
    texts, ids, single = read_inputs(call.body.raw(name), name, calls.options)
    call.method = "single" if single else "batch"
    if task is not None:
        calls.check_task(task)
    prompt = prompt_text(calls, call.body)
    return [prompt + text for text in texts] if prompt else texts, ids, prompt


def prompt_text(calls: Calls, body: Body) -> str:
    """The prompt that a request asks for: by its name (`prompt_name`), or as a query or a document (`input_type`)."""
    served_model = calls.served_model
    name = body.optional_text("prompt_name")
    if name is None and body.optional_text("input_type") is not None:
        name = served_model.prompt_for(body.choice("input_type", KINDS))
    try:
        return served_model.prompt(name)
    except KeyError as error:
        assert name is not None  # the default is one of them
        raise validation_error(f"'prompt_name': {unknown_prompt(name, served_model.prompts)}") from error
