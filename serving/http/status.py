# SPDX-License-Identifier: Apache-2.0
"""What the server says about itself: TEI's /info, /health and /metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import padfree
from padfree.runtime import sample_values
from padfree.runtime.answers import class_names
from padfree.runtime.text import CLASSIFY, EMBED, RERANK, SPARSE, TAG, ServedModel
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import BUSY, DOWN, UNHEALTHY, ApiError
from ..metrics import ProcessCounters
from ..options import ServeOptions
from .calls import Calls
from .link import Link
from .tei import error_body
from .texts import Texts

FRESH_S = 1.0
"""An answer that is no older than this shows that the model is well."""
PATIENCE_S = 3.0
"""How long /health waits for the model, whose next run takes its one short text, however many others wait."""
LOOK_S = 0.05
"""How often /health looks whether the model has computed anything, where it takes no more requests."""


class Status:
    """The routes.

    Args:
        calls: knows the keys.
        texts: answers the text that /health sends.
        counters: those of this process.
        max_batch_tokens: what one run of the model takes; None: any number.
        link: to the process with the model.
    """

    def __init__(
        self, calls: Calls, texts: Texts, counters: ProcessCounters, max_batch_tokens: int | None, link: Link
    ) -> None:
        self._link, self._client = link, link.new_client()
        self._calls, self._texts, self._counters = calls, texts, counters
        self._max_batch_tokens = max_batch_tokens
        self._values = sample_values(calls.served_model.inputs.others, 1)
        self._well = -FRESH_S
        self._check: asyncio.Task[bool] | None = None

    def routes(self) -> list[Route]:
        """Paths and endpoints."""
        health = [Route(path, self._health) for path in ("/health", "/ping", "/")]
        ours = {"/info": self._info, "/metrics": self._metrics}
        return [*health, *(Route(path, self._calls.with_key(work, error_body)) for path, work in ours.items())]

    async def _health(self, _request: Request) -> Response:
        """Open to everybody, because load balancers have no keys; costs at most one short text per second."""
        if self._link.is_leaving:
            return JSONResponse({"error": "the server ends soon", "error_type": UNHEALTHY}, DOWN)
        if time.perf_counter() - self._well < FRESH_S:
            return Response()
        if self._check is None or self._check.done():
            self._check = asyncio.get_running_loop().create_task(self._ask())
        if await asyncio.shield(self._check):
            return Response()
        return JSONResponse({"error": "unhealthy", "error_type": UNHEALTHY}, DOWN)

    async def _ask(self) -> bool:
        """Whether the model answers, or at least computes for others, within PATIENCE_S."""
        start, computed_tokens = time.perf_counter(), self._computed_tokens()
        # As much may wait beside it as beside any request: a busy server must not look like a broken one.
        until = start + max(PATIENCE_S, self._calls.options.limits.seconds)
        try:
            await asyncio.wait_for(
                self._texts.rows(["a"], truncate=True, until=until, client=self._client, values=self._values),
                PATIENCE_S,
            )
        except asyncio.TimeoutError:
            return False
        except ApiError as error:
            if error.status != BUSY:
                return False
            while self._computed_tokens() == computed_tokens:  # no room, even for one text: what of those before?
                if time.perf_counter() - start > PATIENCE_S:
                    return False
                await asyncio.sleep(LOOK_S)
        self._well = time.perf_counter()
        return True

    def _computed_tokens(self) -> float:
        return sum(map(self._counters.read, ("padfree_tokens_total", "padfree_tokens_saved_total")))

    async def _info(self, _request: Request) -> Response:
        return JSONResponse(info(self._calls.served_model, self._calls.options, self._max_batch_tokens))

    async def _metrics(self, _request: Request) -> Response:
        return PlainTextResponse(self._counters.page(), media_type="text/plain; version=0.0.4")


def info(served_model: ServedModel, options: ServeOptions, max_batch_tokens: int | None) -> dict[str, Any]:
    """The body of /info."""
    limits = options.limits
    return {
        "model_id": served_model.name,
        "model_sha": None,
        "model_dtype": {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[served_model.precision],
        "model_type": _model_type(served_model),
        "max_concurrent_requests": limits.concurrency * options.front_ends,
        "max_input_length": served_model.max_length,
        "max_batch_tokens": max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": limits.texts,
        "auto_truncate": options.truncates,
        "tokenization_workers": options.front_ends,
        "version": f"padfree {padfree.__version__}",
        "sha": None,
        "docker_label": None,
    }


def _model_type(served_model: ServedModel) -> dict[str, Any]:
    if served_model.task in (EMBED, SPARSE):
        return {
            "embedding": {"pooling": "splade" if served_model.task == SPARSE else served_model.pooling or "unknown"}
        }
    kind = {RERANK: "reranker", CLASSIFY: "classifier", TAG: "token_classifier"}[served_model.task]
    count = max(1, len(served_model.labels))
    names = {str(at): name for at, name in enumerate(class_names(served_model.labels, count))}
    classes = {"id2label": names, "label2id": {name: int(at) for at, name in names.items()}}
    return {kind: classes}
