# SPDX-License-Identifier: Apache-2.0
"""Sentence vectors inside an application of your own: PADFREE_MODEL=minilm.plan uvicorn fastapi_app:app.

Requests that come at the same time share runs of the model, without padding.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from padfree.runtime import Session
from padfree.runtime.batching import Batcher, FirstCome
from padfree.runtime.batching.errors import DeadlineError, QueueFullError
from padfree.runtime.texts import TextReader
from pydantic import BaseModel, Field


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens the model once, and answers what still waits before it is closed."""
    model = Path(os.environ["PADFREE_MODEL"])  # a plan, or a rewritten .onnx file, that keeps its tokenizer
    with Session(model) as session, Batcher(session, FirstCome(session.budget)) as batcher:
        app.state.reader, app.state.batcher = TextReader(model, session.metadata), batcher
        yield


app = FastAPI(lifespan=lifespan)


class Texts(BaseModel):
    """The body of a request."""

    texts: list[str] = Field(min_length=1, max_length=256)


@app.post("/vectors")
async def vectors(body: Texts, request: Request) -> list[list[float]]:
    """One vector per text."""
    state = request.app.state
    # Tokenising takes time too: other requests do not wait for it.
    tokens = await asyncio.to_thread(state.reader.read, body.texts)
    try:
        answer = await asyncio.wrap_future(state.batcher.submit_group(tokens.request, deadline_s=5.0))
    except (QueueFullError, DeadlineError) as error:
        raise HTTPException(429, str(error)) from error
    return [vector.tolist() for vector in answer["sentence_embedding"]]
