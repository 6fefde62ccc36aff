# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI description of a server: the routes that its model answers, with schemas and examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import padfree
from padfree.runtime.text import ServedModel

from ..options import ServeOptions
from .operations import Operation, operations
from .schemas import ERROR, NUMBER, OPENAI_ERROR, STRING, Schema, objects, one_of

VERSION = "3.1.0"
ERRORS = {
    "401": "no API key, or a wrong one",
    "408": "the body did not come in time",
    "413": "too much: texts, bytes, or tokens of a text that may not be truncated",
    "415": "a compressed body",
    "422": "malformed",
    "424": "the run failed",
    "429": "too much work is waiting; Retry-After says when there will be room",
    "503": "the process with the model does not respond",
}


def description(served_model: ServedModel, options: ServeOptions) -> dict[str, Any]:
    """The document at /openapi.json."""
    operations_by_path = operations(served_model, options)
    paths: dict[str, Any] = {
        path: {"post": _post(path, operation, served_model, options)} for path, operation in operations_by_path.items()
    }
    for path, (summary, schema, media, has_key) in _GETS.items():
        responses = {"200": _response(summary, schema, media)}
        if path == "/health":
            responses["503"] = _response("the model does not answer, or the server ends soon", ERROR)
        elif options.api_keys:
            responses["401"] = _response(ERRORS["401"], OPENAI_ERROR if path.startswith("/v1") else ERROR)
        paths[path] = {
            "get": {
                "operationId": _operation_id("get", path),
                "summary": summary,
                "responses": responses,
                **({"security": []} if options.api_keys and not has_key else {}),
            }
        }
    keys = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    return {
        "openapi": VERSION,
        "info": {
            "title": f"{served_model.name} (padfree serve)",
            "version": padfree.__version__,
            "description": f"Texts have up to {served_model.max_length} tokens; a request has up to "
            f"{options.limits.texts:,} texts and {options.limits.body_bytes:,} bytes. Every answer has the header "
            "x-request-id: the caller's own, or a new one.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        **({"components": keys, "security": [{"key": []}]} if options.api_keys else {}),
    }


_GETS: Mapping[str, tuple[str, Schema | None, str, bool]] = {
    "/v1/models": (
        "OpenAI's list of models: the one that is served",
        objects({"object": STRING, "data": {"type": "array", "items": objects({"id": STRING, "object": STRING})}}),
        "application/json",
        True,
    ),
    "/info": (
        "Model and limits, as text-embeddings-inference shows them",
        {"type": "object"},
        "application/json",
        True,
    ),
    "/health": ("200 if the model answers", None, "", False),
    "/metrics": ("Counters and histograms for Prometheus", STRING, "text/plain", True),
}


def _values(served_model: ServedModel) -> tuple[dict[str, Schema], dict[str, Any]]:
    """Fields of inputs with a row per text, and examples of them."""
    fields, examples = dict[str, Schema](), dict[str, Any]()
    for item in served_model.inputs.others:
        one = NUMBER if item.width is None else {"type": "array", "items": NUMBER}
        fields[item.original_name] = {
            **one_of(NUMBER, {"type": "array", "items": one_of(NUMBER, one)}),
            "description": "which the model reads for every text: one for all, or a list with one per text",
        }
        examples[item.original_name] = 1 if item.width in (None, 1) else [1] * (item.width or 1)
    return fields, examples


def _post(path: str, operation: Operation, served_model: ServedModel, options: ServeOptions) -> dict[str, Any]:
    values, examples = _values(served_model) if path != "/tokenize" else ({}, {})
    body = {
        "type": "object",
        "properties": {**operation.fields, **values},
        "required": [*operation.required_fields, *values],
    }
    errors = {status: text for status, text in ERRORS.items() if status != "401" or options.api_keys}
    return {
        "operationId": _operation_id("post", path),
        "summary": operation.summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body, "example": {**operation.example, **examples}}},
        },
        "responses": {
            "200": _response("the answer", operation.answer),
            **{status: _response(text, operation.error) for status, text in errors.items()},
        },
    }


def _response(text: str, schema: Schema | None, media: str = "application/json") -> dict[str, Any]:
    content = {"content": {media: {"schema": schema}}} if schema is not None else {}
    return {"description": text, **content}


def _operation_id(method: str, path: str) -> str:
    return f"{method}{path.replace('/', '_')}"
