# SPDX-License-Identifier: Apache-2.0
"""TEI's /embed, /embed_all, /similarity, /embed_sparse, /rerank, /predict and /tokenize."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import orjson
from padfree.runtime.answers import Floats, class_names, class_scores, normalize_vectors
from padfree.runtime.text import CLASSIFY, EMBED, RERANK, SPARSE, add_prompt
from starlette.routing import Route
from tokenizers import Tokenizer

from ..errors import ApiError, backend_error, validation_error
from .body import Body, check_count, check_texts, read_pairs, read_texts
from .calls import Call, Calls
from .cohere import rerank
from .late import late_vectors
from .openai import prompt_text, read_texts_or_ids
from .ranks import rank
from .texts import Texts, in_parts
from .vectors import floats, shorten

NO_TOKEN_VECTORS = (
    "/embed_all: this model answers with one row for each text, or with labels of words, and not with vectors of all "
    "tokens; make these with padfree embed, which writes files, or in Python with padfree.Model(...).tokens(texts)"
)
NO_PAIRS = (
    "/predict: a model with a vector for every token reads queries and documents by themselves, and no pairs; send a "
    "query with its texts to /rerank"
)


def error_body(error: ApiError) -> Any:
    """As TEI writes it."""
    return {"error": str(error), "error_type": error.kind}


class Tei:
    """The routes.

    Args:
        calls: makes endpoints.
        texts: has the thread for large requests.
        tokenizer: the model's, which cuts nothing.
    """

    def __init__(self, calls: Calls, texts: Texts, tokenizer: Tokenizer) -> None:
        self._calls, self._texts = calls, texts
        self._tokenizer = tokenizer

    def routes(self) -> list[Route]:
        """Paths and endpoints."""
        works = {
            "/embed": self._embed,
            "/embed_all": self._embed_all,
            "/similarity": self._similarity,
            "/embed_sparse": self._embed_sparse,
            "/rerank": self._rerank,
            "/predict": self._predict,
            "/tokenize": self._tokenize,
        }
        # Hugging Face's clients post to the root, which is the route of the model's task.
        tasks = {
            EMBED: self._embed_or_compare,
            SPARSE: self._embed_sparse,
            RERANK: self._rerank,
            CLASSIFY: self._predict,
        }
        if self._calls.served_model.task in tasks:
            works["/"] = tasks[self._calls.served_model.task]
        return self._calls.routes(works, error_body)

    async def _rows(self, call: Call, task: str) -> Floats:
        texts, ids, prompt = read_texts_or_ids(self._calls, call, "inputs", task)
        truncate = truncates(self._calls, call.body)
        return floats(await self._calls.rows(call, texts, kind="embed", truncate=truncate, ids=ids, prompt=prompt))

    async def _embed(self, call: Call) -> Any:
        normalize, dimensions = call.body.truth("normalize", True), call.body.optional_count("dimensions")
        vectors = shorten(await self._rows(call, EMBED), dimensions)
        return normalize_vectors(vectors) if normalize else vectors

    async def _similarity(self, call: Call) -> Any:
        """Cosines of a text's vector and those of others, [sentences]."""
        calls, body = self._calls, call.body
        calls.check_task(EMBED)
        body.raw("inputs")
        inputs, parameters = body.part("inputs"), body.part("parameters")
        source, sentences = inputs.text("source_sentence"), inputs.raw("sentences")
        check_texts([source], "source_sentence", calls.options)
        texts = [source, *read_texts(sentences, "sentences", calls.options)]
        check_count(len(texts), calls.options)
        prompt, truncate = prompt_text(calls, parameters), truncates(calls, parameters)
        texts = [prompt + text for text in texts]
        rows = await calls.rows(call, texts, kind="embed", truncate=truncate, prompt=prompt)
        vectors = normalize_vectors(floats(rows))
        return np.clip(vectors[1:] @ vectors[0], -1, 1)

    async def _embed_or_compare(self, call: Call) -> Any:
        """The root: Hugging Face's clients send an object there for similarities, and texts for vectors."""
        is_object = isinstance(call.body.raw("inputs"), dict)
        return await (self._similarity if is_object else self._embed)(call)

    async def _embed_all(self, call: Call) -> Any:
        late = self._calls.served_model.late
        if late is None:
            read_texts_or_ids(self._calls, call, "inputs")
            raise backend_error(NO_TOKEN_VECTORS, "model_type")
        texts, ids, _ = read_texts_or_ids(self._calls, call, "inputs")
        if ids:
            raise validation_error("'inputs' has token ids, allowed for /embed_all: a text, or a list of texts")
        return await late_vectors(self._calls, call, late, texts, truncate=truncates(self._calls, call.body))

    async def _embed_sparse(self, call: Call) -> Any:
        answer = []
        for vector in await self._rows(call, SPARSE):
            indices = np.flatnonzero(vector)
            answer.append(
                [
                    {"index": at, "value": value}
                    for at, value in zip(indices.tolist(), vector[indices].tolist(), strict=True)
                ]
            )
        return answer

    async def _rerank(self, call: Call) -> Any:
        """As TEI; requests with `documents`, as clients of vLLM, Infinity and Jina send them, are answered as there."""
        body = call.body
        if "documents" in body and "texts" not in body:
            return await rerank(self._calls, 1, call)
        query, texts = body.text("query"), read_texts(body.raw("texts"), "texts", self._calls.options)
        raw, with_texts = body.truth("raw_scores", False), body.truth("return_text", False)
        check_texts([query], "query", self._calls.options)
        ranks = await rank(self._calls, call, query, texts, truncate=truncates(self._calls, body), raw=raw)
        return [{"index": at, "score": score, **({"text": texts[at]} if with_texts else {})} for at, score in ranks]

    async def _predict(self, call: Call) -> Any:
        body, served_model = call.body, self._calls.served_model
        pairs, single = read_pairs(body.raw("inputs"), "inputs", self._calls.options)
        call.method = "single" if single else "batch"
        raw = body.truth("raw_scores", False)
        self._calls.check_task(CLASSIFY, RERANK)
        if served_model.late is not None:
            raise backend_error(NO_PAIRS, "model_type")
        if served_model.refuses_single_texts and any(isinstance(item, str) for item in pairs):
            raise validation_error("'inputs' has a text by itself, and the model scores pairs; send [query, text]")
        prompt = served_model.prompt(None)
        pairs = [item if isinstance(item, str) else add_prompt(item, prompt) for item in pairs]
        rows = await self._calls.rows(call, pairs, kind="predict", truncate=truncates(self._calls, body))
        logits = floats(rows).reshape(len(pairs), -1)
        scores = logits if raw else class_scores(logits, served_model.problem, activated=served_model.activated)
        names = class_names(served_model.labels, scores.shape[1])
        answers = [
            [{"score": float(row[at]), "label": names[at]} for at in np.argsort(-row, kind="stable")] for row in scores
        ]
        return answers[0] if single else answers

    async def _tokenize(self, call: Call) -> Any:
        texts, ids, _ = read_texts_or_ids(self._calls, call, "inputs")
        if ids:
            raise validation_error("'inputs' has token ids, allowed for /tokenize: a text, or a list of texts")
        special = call.body.truth("add_special_tokens", True)
        self._texts.check_backlog(sum(map(len, texts)))
        return in_parts(texts, self._texts.aside, partial(self._tokens_json, texts, special))

    def _tokens_json(self, texts: list[str], special: bool, part: slice) -> bytes:
        """Tokens of some texts, without the brackets around all of them."""
        some = texts[part]
        encodings = self._tokenizer.encode_batch(some, add_special_tokens=special)
        items = [
            [
                {
                    "id": item,
                    "text": text if is_special else source[start:stop],
                    "special": bool(is_special),
                    "start": None if is_special else start,
                    "stop": None if is_special else stop,
                }
                for item, text, is_special, (start, stop) in zip(
                    encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
                )
            ]
            for source, encoding in zip(some, encodings, strict=True)
        ]
        return orjson.dumps(items)[1:-1]


def truncates(calls: Calls, body: Body) -> bool:
    """Whether long texts are cut, at the end that the tokenizer's settings say; ApiError for the other end."""
    side = calls.served_model.tokenizer.truncation_side
    body.choice("truncation_direction", (side, side.capitalize()))
    return body.truth("truncate", calls.options.truncates)
