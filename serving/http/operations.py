# SPDX-License-Identifier: Apache-2.0
"""POST routes as the OpenAPI description has them: fields, answers and an example that the server answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from padfree.runtime.text import CLASSIFY, EMBED, RERANK, SPARSE, TAG, ServedModel

from ..options import ServeOptions
from .cohere import ENDS, OTHER_KINDS
from .openai import FORMATS, KINDS
from .schemas import (
    BOOLEAN,
    ERROR,
    NUMBER,
    OPENAI_ERROR,
    STRING,
    VECTOR,
    Schema,
    choice,
    count,
    objects,
    one_of,
    optional,
    texts_or_one,
)
from .vectors import VECTOR_KINDS

TEXT, OTHER_TEXT = "the cat sat on the mat", "it rained all day"


@dataclass(frozen=True)
class Operation:
    """A POST route.

    Attributes:
        summary: what it does.
        fields: those of the body, by name.
        required_fields: names of those that must be there.
        answer: schema of the answer.
        example: a body that the server answers.
        error: schema of its errors.
    """

    summary: str
    fields: Mapping[str, Schema]
    required_fields: tuple[str, ...]
    answer: Schema
    example: Mapping[str, Any]
    error: Schema


def operations(served_model: ServedModel, options: ServeOptions) -> dict[str, Operation]:
    """POST routes that fit the model, by path."""
    texts = texts_or_one(options.limits.texts, ids=options.accept_token_ids)
    truncate = {"truncate": optional(BOOLEAN, options.truncates)}
    prompts = _prompts(served_model)
    operations_by_name: dict[str, Operation] = {}
    if served_model.task == EMBED:
        operations_by_name["/v1/embeddings"] = _openai(texts, prompts)
        operations_by_name.update(_cohere_embed(served_model, options))
        operations_by_name["/embed"] = _embed(texts, {**truncate, **prompts})
        operations_by_name["/similarity"] = _similarity(options, {**truncate, **prompts})
    elif served_model.task == SPARSE:
        operations_by_name["/embed_sparse"] = _embed_sparse(texts, {**truncate, **prompts})
    elif served_model.task == RERANK:
        operations_by_name.update(_rerank(options, truncate))
        if served_model.late is None:
            operations_by_name["/predict"] = _predict(served_model, truncate)
        else:
            operations_by_name["/embed_all"] = _embed_all(options, {**truncate, **prompts})
    elif served_model.task == CLASSIFY:
        operations_by_name["/predict"] = _predict(served_model, truncate)
    else:
        assert served_model.task == TAG
        operations_by_name["/tag"] = _tag(options, truncate)
    operations_by_name["/tokenize"] = _tokenize(options, prompts)
    return operations_by_name


def _embed(texts: Schema, parameters: Mapping[str, Schema]) -> Operation:
    return Operation(
        "Vectors of texts, as text-embeddings-inference gives them",
        {"inputs": texts, "normalize": optional(BOOLEAN, True), "dimensions": count(), **parameters},
        ("inputs",),
        {"type": "array", "items": VECTOR},
        {"inputs": [TEXT, OTHER_TEXT]},
        ERROR,
    )


def _embed_sparse(texts: Schema, parameters: Mapping[str, Schema]) -> Operation:
    entry = objects({"index": count(0), "value": NUMBER})
    return Operation(
        "Sparse vectors of texts: every number that is not zero",
        {"inputs": texts, **parameters},
        ("inputs",),
        {"type": "array", "items": {"type": "array", "items": entry}},
        {"inputs": [TEXT]},
        ERROR,
    )


def _tokenize(options: ServeOptions, prompts: Mapping[str, Schema]) -> Operation:
    token = objects(
        {
            "id": count(0),
            "text": STRING,
            "special": BOOLEAN,
            "start": {"type": ["integer", "null"]},
            "stop": {"type": ["integer", "null"]},
        }
    )
    return Operation(
        "Tokens of texts, and where they are in them",
        {
            "inputs": texts_or_one(options.limits.texts, ids=False),
            "add_special_tokens": optional(BOOLEAN, True),
            **prompts,
        },
        ("inputs",),
        {"type": "array", "items": {"type": "array", "items": token}},
        {"inputs": TEXT},
        ERROR,
    )


def _openai(texts: Schema, prompts: Mapping[str, Schema]) -> Operation:
    item = objects({"object": STRING, "index": count(0), "embedding": one_of(VECTOR, STRING)})
    usage = objects({"prompt_tokens": count(0), "total_tokens": count(0)})
    return Operation(
        "Vectors of texts, of length 1, as OpenAI gives them",
        {
            "input": texts,
            "model": {**STRING, "description": "is not looked at: the server has one model"},
            "encoding_format": choice(*FORMATS),
            "dimensions": count(),
            **prompts,
        },
        ("input",),
        objects({"object": STRING, "data": {"type": "array", "items": item}, "model": STRING, "usage": usage}),
        {"input": [TEXT, OTHER_TEXT]},
        OPENAI_ERROR,
    )


def _cohere_embed(served_model: ServedModel, options: ServeOptions) -> dict[str, Operation]:
    texts = {"type": "array", "minItems": 1, "maxItems": options.limits.texts, "items": STRING}
    vectors = {kind: {"type": "array", "items": STRING if kind == "base64" else VECTOR} for kind in VECTOR_KINDS}
    side = served_model.tokenizer.truncation_side
    by_type = objects(vectors, 0)

    def operation(embeddings: Schema) -> Operation:
        return Operation(
            "Vectors of texts, of length 1, in the types of numbers that are asked for, as Cohere gives them",
            {
                "texts": texts,
                "input_type": choice(*KINDS, *OTHER_KINDS),
                "embedding_types": {"type": "array", "items": choice(*VECTOR_KINDS)},
                "output_dimension": count(),
                "truncate": choice(*(value for value, end in ENDS.items() if end == side), "NONE"),
            },
            ("texts",),
            objects({"id": STRING, "embeddings": embeddings, "texts": texts, "meta": {"type": "object"}}),
            {"texts": [TEXT, OTHER_TEXT], "embedding_types": ["float", "int8"]},
            objects({"message": STRING}),
        )

    return {"/v1/embed": operation(one_of(by_type, vectors["float"])), "/v2/embed": operation(by_type)}


def _similarity(options: ServeOptions, parameters: Mapping[str, Schema]) -> Operation:
    sentences = {"type": "array", "minItems": 1, "maxItems": options.limits.texts - 1, "items": STRING}
    return Operation(
        "How similar sentences are to another one: cosines of their vectors, as text-embeddings-inference gives them",
        {
            "inputs": objects({"source_sentence": STRING, "sentences": sentences}),
            "parameters": objects(parameters, 0),
        },
        ("inputs",),
        {"type": "array", "items": NUMBER},
        {"inputs": {"source_sentence": TEXT, "sentences": [TEXT, OTHER_TEXT]}},
        ERROR,
    )


def _rerank(options: ServeOptions, truncate: Mapping[str, Schema]) -> dict[str, Operation]:
    many = {"type": "array", "minItems": 1, "maxItems": options.limits.texts}
    document = one_of(STRING, objects({"text": STRING}))
    result = objects({"index": count(0), "relevance_score": NUMBER, "document": objects({"text": STRING})}, 2)
    cohere = Operation(
        "Documents by how well they answer a query, as Cohere gives them; relevance from 0 to 1",
        {
            "query": STRING,
            "documents": {**many, "items": document},
            "top_n": count(),
            "return_documents": optional(BOOLEAN, False),
            "raw_scores": optional(BOOLEAN, False),
        },
        ("query", "documents"),
        objects({"id": STRING, "results": {"type": "array", "items": result}, "meta": {"type": "object"}}),
        {"query": "rain", "documents": [TEXT, OTHER_TEXT]},
        objects({"message": STRING}),
    )
    tei = Operation(
        "Texts by how well they answer a query, as text-embeddings-inference gives them",
        {
            "query": STRING,
            "texts": {**many, "items": STRING},
            "raw_scores": optional(BOOLEAN, False),
            "return_text": optional(BOOLEAN, False),
            **truncate,
        },
        ("query", "texts"),
        {"type": "array", "items": objects({"index": count(0), "score": NUMBER, "text": STRING}, 2)},
        {"query": "rain", "texts": [TEXT, OTHER_TEXT]},
        ERROR,
    )
    return {"/v1/rerank": cohere, "/v2/rerank": cohere, "/rerank": tei}


def _embed_all(options: ServeOptions, parameters: Mapping[str, Schema]) -> Operation:
    return Operation(
        "Vectors of the tokens of documents, or of queries, as text-embeddings-inference gives them",
        {"inputs": texts_or_one(options.limits.texts, ids=False), **parameters},
        ("inputs",),
        {"type": "array", "items": {"type": "array", "items": VECTOR}},
        {"inputs": [TEXT], "prompt_name": "document"},
        ERROR,
    )


def _predict(served_model: ServedModel, truncate: Mapping[str, Schema]) -> Operation:
    single = {"type": "array", "items": STRING, "minItems": 1, "maxItems": 2}
    scores = {"type": "array", "items": objects({"score": NUMBER, "label": STRING})}
    pairs = served_model.takes_pairs or served_model.task == RERANK
    return Operation(
        "Scores of labels, the best first, as text-embeddings-inference gives them",
        {
            "inputs": one_of(STRING, single, {"type": "array", "items": single}),
            "raw_scores": optional(BOOLEAN, False),
            **truncate,
        },
        ("inputs",),
        one_of(scores, {"type": "array", "items": scores}),
        {"inputs": [[TEXT, OTHER_TEXT]] if pairs else [[TEXT], [OTHER_TEXT]]},
        ERROR,
    )


def _tag(options: ServeOptions, truncate: Mapping[str, Schema]) -> Operation:
    word = objects({"text": STRING, "start": count(0), "end": count(0), "label": STRING, "score": NUMBER})
    words = {"type": "array", "items": word}
    return Operation(
        "Words of texts with labels and offsets; with `words`, every word by itself",
        {
            "inputs": texts_or_one(options.limits.texts, ids=False),
            "words": optional(BOOLEAN, False),
            **truncate,
        },
        ("inputs",),
        one_of(words, {"type": "array", "items": words}),
        {"inputs": [TEXT], "words": True},
        ERROR,
    )


def _prompts(served_model: ServedModel) -> dict[str, Schema]:
    if not served_model.prompts:
        return {}
    return {"prompt_name": choice(*served_model.prompts), "input_type": choice(*KINDS)}
