# SPDX-License-Identifier: Apache-2.0
"""What all routes that use the model share: keys, limits, errors, counting."""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import orjson
from padfree.runtime.text import CLASSIFY, EMBED, RERANK, SPARSE, TAG, ServedModel, Text, count_characters
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import BUSY, TOO_SLOW, VALIDATION, WRONG_KEY, ApiError, backend_error, busy_error
from ..metrics import ProcessCounters
from ..options import ServeOptions
from ..summary import routes_of
from .body import Body
from .connection import Connection
from .cuts import CutLog
from .link import Link
from .reading import read_body
from .requests import Note, note_of
from .texts import Answer, Ids, Texts
from .values import values_of_texts

T = TypeVar("T")

JSON = "application/json"
TRUNCATED_HEADER = "x-truncated-texts"
INTERNAL = 500
MOST_UNREAD_BYTES = 1 << 26
"""The most bytes of unread answers in a front-end process; beyond that it takes no more requests."""
RETRY_S = 1.0
"""When another try is worthwhile, if the error does not say."""


@dataclass(eq=False)
class Call:
    """One request on its way.

    Attributes:
        body: its fields.
        client: who asks, as Link numbers them.
        until: time.perf_counter() at which it has taken too long.
        method: "single" for a text by itself, "batch" for a list.
        kind: "embed" or "predict", what its texts are counted as; "" before it is known.
        texts: how many it has.
        characters: how many characters its texts have.
        answer: what the model made of them.
    """

    body: Body
    client: int
    until: float
    method: str = "batch"
    kind: str = ""
    texts: int = 0
    characters: int = 0
    answer: Answer | None = None

    @property
    def truncated(self) -> dict[str, list[int]]:
        """The numbers of the texts that were cut, as a field of the answer; none where all are whole."""
        cut = [] if self.answer is None else np.flatnonzero(self.answer.cut).tolist()
        return {"truncated": cut} if cut else {}


MODELS = {
    EMBED: "an embedding model",
    SPARSE: "a sparse embedding model",
    RERANK: "a reranker model",
    CLASSIFY: "a classifier model",
    TAG: "a token classification model",
}
Work = Callable[[Call], Awaitable[Any]]
Page = Callable[[Request], Awaitable[Response]]
Style = Callable[[ApiError], Any]
"""How an API writes errors."""


class Calls:
    """Makes endpoints.

    Args:
        served_model: the model.
        options: keys and limits.
        texts: answers texts.
        link: takes lines for the log.
        counters: those of this process.
    """

    def __init__(
        self, served_model: ServedModel, options: ServeOptions, texts: Texts, link: Link, counters: ProcessCounters
    ) -> None:
        self.served_model, self.options = served_model, options
        self._texts, self._link, self._counters = texts, link, counters
        self._open = 0
        self._cuts = CutLog(served_model, link.log)
        self.row_bytes = 0  # bytes of rows from which answers are still being made, as callers read them
        self.unread_bytes = 0  # bytes of answers not yet taken by callers; the process counts them now and then

    def routes(self, works: Mapping[str, Work], style: Style) -> list[Route]:
        """A route for each path, which answers a JSON body with what the work of this path returns, in JSON."""
        return [Route(path, Endpoint(self, work, style), methods=["POST"]) for path, work in works.items()]

    async def serve(self, request: Request, connection: Connection, work: Work, style: Style, send: Send) -> None:
        """Answers a request, which counts as under way until its answer is read."""
        start = time.perf_counter()
        is_open = False
        note = note_of(request.scope)
        try:
            call: Call | None = None
            try:
                key = self.check_key(request)
                note.key = key or None
                client = key or self._client(connection)
                if (
                    self._open >= self.options.limits.concurrency
                    or self.unread_bytes + self.row_bytes > MOST_UNREAD_BYTES
                ):
                    raise busy_error(
                        "the model is overloaded: too many requests are under way; try again later", RETRY_S
                    )
                self._open += 1
                is_open = True
                until = start + self.options.limits.seconds
                call = Call(Body(await read_body(request, self.options.limits.body_bytes, until)), client, until)
                response = self._respond(call, start, await work(call))
            except ApiError as error:
                response = self._refuse(call, error, error.label, style)
                note.error = error.label
            except ClientDisconnect:
                return
            except Exception as error:  # a defect: its caller gets an answer all the same
                self._link.log(f"a request failed with {error!r} ({note.id})")
                response = self._refuse(
                    call, backend_error(f"the server failed: {error!r}"), "internal", style, INTERNAL
                )
                note.error = "internal"
            _fill_note(call, note)
            await response(request.scope, request.receive, send)
            await connection.drain()
        finally:
            self._open -= is_open

    def _respond(self, call: Call, start: float, content: Any) -> Response:
        """The response; `content` becomes JSON, or is an iterator over parts of JSON."""
        streamed = isinstance(content, AsyncIterator)
        raw = b"" if streamed else orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        self._counters.add("te_request_count", method=call.method)
        self._counters.add("te_request_success", method=call.method)
        self._count(call, "success")
        self._counters.observe("te_request_duration", [time.perf_counter() - start])
        headers = _headers(call, start)
        if streamed:
            return StreamingResponse(content, headers=headers, media_type=JSON)
        return Response(raw, headers=headers, media_type=JSON)

    def with_key(self, work: Page, style: Style) -> Page:
        """An endpoint that answers only callers with a key."""

        async def answer(request: Request) -> Response:
            try:
                self.check_key(request)
            except ApiError as error:
                return JSONResponse(style(error), error.status, _headers_of(error))
            return await work(request)

        return answer

    def check_key(self, request: Request) -> int:
        """Which key a request has, as the client's number for Link; 0 where all callers have the same key.

        Raises:
            ApiError: keys are asked for, and the request has none of them.
        """
        keys = self.options.api_keys
        if not keys:
            return 0
        scheme, _, credentials = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
        # The time does not depend on where a wrong key differs.
        matches = [hmac.compare_digest(credentials.strip(), key.encode()) for key in keys]
        if scheme.lower() != b"bearer" or not any(matches):
            raise ApiError(WRONG_KEY, VALIDATION, "no API key, or a wrong one", "unauthorized")
        return 1 + matches.index(True) if len(keys) > 1 else 0

    def count_gone(self) -> None:
        """Counts a caller that has hung up."""
        self._counters.add("padfree_gone_total")

    def _client(self, connection: Connection) -> int:
        connection.sharer = connection.sharer or self._link.new_client()
        return connection.sharer

    def check_task(self, *tasks: str) -> None:
        """Raises ApiError where the model has none of these tasks; the message begins as TEI's for the first."""
        task = self.served_model.task
        if task not in tasks:
            routes_text = ", ".join(routes_of(self.served_model))
            raise backend_error(
                f"model is not {MODELS[tasks[0]]}, it is {MODELS[task]} and answers {routes_text}",
                "model_type",
            )

    async def rows(
        self, call: Call, texts: Sequence[Text], *, kind: str, truncate: bool, ids: Sequence[Ids] = (), prompt: str = ""
    ) -> Any:
        """The model's rows for the texts of a call, which begin with the prompt, or for its ids."""
        call.kind, call.texts = kind, len(texts) or len(ids)
        call.characters = sum(map(count_characters, texts))
        self._count(call, "count")
        values = values_of_texts(call.body, self.served_model.inputs, call.texts)
        call.answer = await self._texts.rows(
            texts, truncate=truncate, until=call.until, client=call.client, ids=ids, prompt=prompt, values=values
        )
        self._cuts.add(int(call.answer.cut.sum()))
        return call.answer.values

    async def aside(self, work: Callable[[], T]) -> T:
        """As `Texts.aside`."""
        return await self._texts.aside(work)

    def _count(self, call: Call, what: str) -> None:
        if call.kind:
            self._counters.add(f"te_{call.kind}_{what}", call.texts)

    def _refuse(
        self, call: Call | None, error: ApiError, label: str, style: Style, status: int | None = None
    ) -> Response:
        self._counters.add("te_request_count", method=call.method if call else "single")
        self._counters.add("te_request_failure", err=label)
        headers = _headers_of(error)
        if error.status == TOO_SLOW:
            headers["connection"] = "close"  # the rest of the body may still come
        return Response(orjson.dumps(style(error)), status or error.status, headers, media_type=JSON)


def _headers_of(error: ApiError) -> dict[str, str]:
    """What the answer to a request says of its error beside the body."""
    if error.status == WRONG_KEY:
        return {"www-authenticate": "Bearer"}
    wait = RETRY_S if error.status == BUSY and error.retry_after_s is None else error.retry_after_s
    return {} if wait is None else {"retry-after": str(max(1, math.ceil(wait)))}


def _fill_note(call: Call | None, note: Note) -> None:
    """What the access log says about a call."""
    if call is not None:
        note.texts = call.texts or None
        if call.answer is not None:
            note.tokens, note.truncated = call.answer.tokens, int(call.answer.cut.sum()) or None


class Endpoint:
    """A route that takes a JSON body; an ASGI application, which sees when its caller hangs up."""

    def __init__(self, calls: Calls, work: Work, style: Style) -> None:
        self._calls, self._work, self._style = calls, work, style

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        connection: Connection = scope["state"]["connection"]
        task = asyncio.current_task()
        assert task is not None
        connection.begin(task)
        try:
            await self._calls.serve(Request(scope, receive), connection, self._work, self._style, send)
        except asyncio.CancelledError:
            if not connection.is_gone:
                raise
            self._calls.count_gone()
        finally:
            connection.end(task)


def _headers(call: Call, start: float) -> Mapping[str, str] | None:
    """What TEI tells about a request in its answer's headers, and how many of its texts were cut."""
    answer = call.answer
    if answer is None:
        return None
    times = {
        "x-total-time": time.perf_counter() - start,
        "x-tokenization-time": answer.tokenize_s,
        "x-queue-time": answer.queue_s,
        "x-inference-time": answer.run_s,
    }
    return {
        "x-compute-characters": str(call.characters),
        "x-compute-tokens": str(answer.tokens),
        TRUNCATED_HEADER: str(int(answer.cut.sum())),
        **{name: f"{1e3 * seconds:.0f}" for name, seconds in times.items()},
    }
