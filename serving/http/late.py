# SPDX-License-Identifier: Apache-2.0
"""Models with a vector for every token: scores of texts for a query, and the vectors themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import orjson
from padfree.contract.late_interaction import DOCUMENT, QUERY, ROLES, LateInteraction
from padfree.runtime import bounds_of
from padfree.runtime.answers import Floats, max_sims, token_vectors
from padfree.runtime.text import Query, in_role

from .body import Body
from .calls import Call, Calls
from .openai import KINDS
from .texts import Answer, in_parts
from .vectors import floats


async def late_scores(
    calls: Calls, call: Call, late: LateInteraction, query: str, texts: Sequence[str], *, truncate: bool
) -> Floats:
    """Scores [texts] for a query, which is computed once."""
    await calls.rows(call, [*texts, Query(query)], kind="predict", truncate=truncate)
    answer = call.answer
    assert answer is not None
    call.answer = replace(answer, cut=answer.cut[:-1] | answer.cut[-1])  # a query that was cut concerns all texts

    def score() -> Floats:
        query_answer, documents = _part(answer, slice(-1, None)), _part(answer, slice(0, -1))
        (query_vectors,) = _vectors(late, query_answer, are_queries=True)
        return max_sims(query_vectors, _vectors(late, documents, are_queries=False))

    return await calls.aside(score)


async def late_vectors(
    calls: Calls, call: Call, late: LateInteraction, texts: Sequence[str], *, truncate: bool
) -> AsyncIterator[bytes]:
    """The vectors of each text's tokens, as JSON in parts: of documents, unless the body says that they are queries."""
    role = _role(call.body)
    await calls.rows(call, in_role(texts, role), kind="embed", truncate=truncate)
    answer = call.answer
    assert answer is not None
    vectors = list(_vectors(late, answer, are_queries=role == QUERY))
    return _parts(calls, texts, vectors)


async def _parts(calls: Calls, texts: Sequence[str], vectors: Sequence[Floats]) -> AsyncIterator[bytes]:
    """The answer; its vectors count until it is read."""
    size = sum(part.nbytes for part in vectors)
    calls.row_bytes += size
    try:
        async for part in in_parts(texts, calls.aside, partial(_json, vectors)):
            yield part
    finally:
        calls.row_bytes -= size


def _json(vectors: Sequence[Floats], part: slice) -> bytes:
    return orjson.dumps([np.ascontiguousarray(rows) for rows in vectors[part]], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _role(body: Body) -> str:
    """What the texts of a request are, by `prompt_name` or `input_type`."""
    if body.optional_text("prompt_name") is not None:
        return body.choice("prompt_name", ROLES)
    if body.optional_text("input_type") is None:
        return DOCUMENT
    return QUERY if QUERY in body.choice("input_type", KINDS) else DOCUMENT


def _part(answer: Answer, texts: slice) -> Answer:
    """The answer of some of a request's texts."""
    bounds = bounds_of(answer.seq_lens)
    first, after, _ = texts.indices(answer.seq_lens.size)
    tokens = slice(bounds[first], bounds[after])
    return replace(
        answer,
        values=answer.values[tokens],
        seq_lens=answer.seq_lens[texts],
        cut=answer.cut[texts],
        ids=answer.ids[tokens],
    )


def _vectors(late: LateInteraction, answer: Answer, *, are_queries: bool) -> Iterator[Floats]:
    """The vectors of each text's tokens that count, [tokens, N], each copied when it is asked for."""
    rows = np.split(answer.values, bounds_of(answer.seq_lens)[1:-1])
    return map(floats, token_vectors(late, rows, answer.ids, [are_queries] * len(rows)))
