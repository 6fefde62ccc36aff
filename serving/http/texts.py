# SPDX-License-Identifier: Apache-2.0
"""From texts to rows: tokenised off the event loop, many requests together, and sent to the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from padfree.runtime import Array, Budget, cut
from padfree.runtime.batching.pace import room
from padfree.runtime.batching.queue import LARGE
from padfree.runtime.text import EncodedTexts, Query, ServedModel, Text, TextError, as_columns, count_characters

from ..errors import ApiError, backend_error, busy_error, tokenizer_error, too_large_error
from ..metrics import ProcessCounters
from .link import Link

if TYPE_CHECKING:
    from tokenizers import Encoding

Ids = list[int]
T = TypeVar("T")
Aside = Callable[[Callable[[], bytes]], Awaitable[bytes]]

BATCH_CHARACTERS = 1 << 14
"""Texts of waiting requests that are tokenised in one call; larger requests are tokenised beside them."""
BACKLOG_CHARACTERS = 1 << 23
"""The most that waits to be tokenised; more is refused, as nobody would wait that long."""


@dataclass(frozen=True)
class Answer:
    """The model's rows for the texts of a request, and how long they took.

    Attributes:
        values: [texts, ...]; if tokens have rows, those of all texts one after the other.
        seq_lens: tokens of each text.
        cut: bool [texts], which of them were longer than the model takes and lost an end.
        tokenize_s: seconds until there were tokens.
        queue_s: seconds that the request waited for the model.
        run_s: seconds of the last run that had texts of it.
        ids: of all tokens, one text after the other.
    """

    values: Array
    seq_lens: Array
    cut: Array
    tokenize_s: float
    queue_s: float
    run_s: float
    ids: Array

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return int(self.seq_lens.sum())


@dataclass(eq=False)
class _Job:
    """The texts of a request while they are tokenised."""

    texts: Sequence[Text]
    ids: Sequence[Ids]
    truncate: bool
    characters: int
    done: asyncio.Future[EncodedTexts]


class Texts:
    """Gets the model's rows for texts.

    Args:
        served_model: the model.
        link: to the process with the model.
        counters: those of this process.
        waiting_tokens: the most that may wait for the model.
    """

    def __init__(self, served_model: ServedModel, link: Link, counters: ProcessCounters, waiting_tokens: int) -> None:
        self._served_model = served_model
        self._encoder = served_model.encoder()
        self._waiting_tokens = waiting_tokens
        self._tokens_a_character = 0.0  # a moving average over requests; 0 before the first
        self._link = link
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._small = ThreadPoolExecutor(1, "padfree-texts")
        self._large = ThreadPoolExecutor(1, "padfree-large-texts")
        self._jobs: list[_Job] = []
        self._tokenizing = False
        self._characters = 0

    async def rows(
        self,
        texts: Sequence[Text],
        *,
        truncate: bool,
        until: float,
        client: int,
        ids: Sequence[Ids] = (),
        prompt: str = "",
        values: Mapping[str, Array] = MappingProxyType({}),
    ) -> Answer:
        """The model's rows for texts, or for ids instead of them.

        Args:
            texts: texts, or pairs.
            truncate: cut texts beyond the model's length; otherwise they are an error.
            until: time.perf_counter() at which nobody waits any more.
            client: who asks, as Link numbers them.
            ids: token ids, special tokens included, where there are no texts.
            prompt: what the texts begin with, for models that leave it out of pooling.
            values: of the inputs with a row per sequence that texts do not give, [texts] or [texts, N].

        Raises:
            ApiError: texts that are too long, too much that waits, or a model that fails.
        """
        characters = sum(map(count_characters, texts))
        self.check_backlog(characters)
        arrival_s = time.perf_counter()
        if characters > BATCH_CHARACTERS:
            self._check_room(characters, until - arrival_s)
        job = _Job(texts, ids, truncate, characters, self._loop.create_future())
        tokens = self._look_up(job) if characters <= BATCH_CHARACTERS else None
        if tokens is None:
            self._characters += characters
            try:
                if characters > BATCH_CHARACTERS:
                    self._start(self._large, [job])
                else:
                    self._jobs.append(job)
                    self._next_batch()
                tokens = await job.done
            finally:
                self._characters -= characters
        tokenize_s = time.perf_counter() - arrival_s
        self._counters.observe("te_request_input_length", tokens.seq_lens.tolist())
        if characters:
            share = tokens.seq_lens.sum() / characters
            self._tokens_a_character += (share - self._tokens_a_character) * (0.1 if self._tokens_a_character else 1.0)
        prompt_tokens = self._encoder.prompt_tokens(prompt) if self._served_model.inputs.leaves_out_prompts else 0
        inputs = self._served_model.inputs
        columns = [*inputs.columns(tokens, prompt_tokens).values(), *as_columns(inputs.others, values)]
        result = await self._link.infer(tokens.seq_lens, columns, until, client)
        self._counters.observe("te_request_queue_duration", [result.queue_s])
        self._counters.observe("te_request_inference_duration", [result.run_s])
        self._counters.observe("te_request_tokenization_duration", [tokenize_s])
        return Answer(result.values, tokens.seq_lens, tokens.cut, tokenize_s, result.queue_s, result.run_s, tokens.ids)

    def check_backlog(self, characters: int) -> None:
        """Raises ApiError where so many more characters would be too much to tokenise."""
        if self._characters and self._characters + characters > BACKLOG_CHARACTERS:
            raise busy_error(
                f"{self._characters} characters of texts wait, allowed: {BACKLOG_CHARACTERS}; try again later"
            )

    def encodings(self, texts: Sequence[str]) -> list[Encoding]:
        """Words and offsets of the tokens of texts that `rows` has taken; for `aside`."""
        return self._encoder.encodings(texts)

    async def aside(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread of large requests, after earlier ones; returns its result."""
        return await self._loop.run_in_executor(self._large, work)

    def close(self) -> None:
        """Ends the threads."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)

    def _check_room(self, characters: int, seconds: float) -> None:
        """Refuses, before they are tokenised, texts that the model's process, which counts tokens, would refuse."""
        rate, waiting = (self._counters.read(f"padfree_{name}") for name in ("tokens_a_second", "waiting_tokens"))
        more = characters * self._tokens_a_character
        most = min(LARGE * self._waiting_tokens, room(rate or None, seconds))
        if waiting and waiting + more > most:
            raise busy_error(
                f"{waiting:.0f} tokens wait for the model, and the request has some {more:.0f}, allowed: {most:.0f}; "
                "try again later, or send less",
                (waiting + more - most) / rate if rate else None,
            )

    def _next_batch(self) -> None:
        """Starts on what waits, unless the thread is busy: whatever comes meanwhile makes the next batch."""
        if self._tokenizing or not self._jobs:
            return
        self._tokenizing = True
        jobs = [job for job in self._jobs if not job.done.done()]  # callers may have gone
        if not jobs:
            self._jobs, self._tokenizing = [], False
            return
        run = next(cut((job.characters for job in jobs), Budget(max_tokens=BATCH_CHARACTERS)))
        self._jobs = jobs[run.stop :]
        self._start(self._small, jobs[run])

    def _start(self, pool: ThreadPoolExecutor, jobs: list[_Job]) -> None:
        future = self._loop.run_in_executor(pool, self._tokenize, jobs)
        future.add_done_callback(lambda done: self._finish(jobs, done, pool is self._small))

    def _finish(self, jobs: list[_Job], done: asyncio.Future[list[EncodedTexts | ApiError]], small: bool) -> None:
        if small:
            self._tokenizing = False
            self._next_batch()
        error = None if done.cancelled() else done.exception()
        results: Sequence[EncodedTexts | ApiError] = (
            [backend_error(f"the texts could not be tokenised: {error!r}")] * len(jobs)
            if done.cancelled() or error is not None
            else done.result()
        )
        for job, result in zip(jobs, results, strict=True):
            if job.done.done():
                continue  # nobody waits
            if isinstance(result, ApiError):
                job.done.set_exception(result)
            else:
                job.done.set_result(result)

    def _tokenize(self, jobs: list[_Job]) -> list[EncodedTexts | ApiError]:
        """Makes the tokens of jobs, or why each has none; in a thread."""
        if all(job.done.done() for job in jobs):
            return [backend_error("the caller has gone")] * len(jobs)
        try:
            encoded = self._encoder.encode([text for job in jobs for text in job.texts])
        except TextError as error:
            if len(jobs) == 1:
                return [tokenizer_error(str(error))]
            return [self._tokenize([job])[0] for job in jobs]
        parts = encoded.split([len(job.texts) for job in jobs])
        return [_attempt(partial(self._tokens, job, part)) for job, part in zip(jobs, parts, strict=True)]

    def _look_up(self, job: _Job) -> EncodedTexts | None:
        """Tokens of plain texts; None where the library has to make them."""
        tokens = None if job.ids else self._encoder.look_up(job.texts)
        return None if tokens is None else self._tokens(job, tokens)

    def _tokens(self, job: _Job, encoded: EncodedTexts) -> EncodedTexts:
        """A job's tokens; an ApiError where the model does not take them."""
        encoded = EncodedTexts.of_ids(job.ids) if job.ids else encoded
        seq_lens = encoded.seq_lens
        if encoded.cut.any() and not job.truncate:
            at = int(encoded.cut.argmax())
            raise _too_long(_name_of(job.texts, at), self._encoder.most_of(job.texts[at]))
        if seq_lens.max() > self._served_model.max_length:
            raise _too_long(f"text {int(seq_lens.argmax())}", self._served_model.max_length)
        if not seq_lens.all():
            raise tokenizer_error(f"text {int(np.flatnonzero(seq_lens == 0)[0])} has no tokens; send one that has some")
        return encoded


async def in_parts(
    texts: Sequence[str], aside: Aside, make: Callable[[slice], bytes], *, brackets: bool = True
) -> AsyncIterator[bytes]:
    """JSON for texts, which is much larger than these: in parts, each made once the one before is on its way.

    Args:
        texts: are divided by their characters.
        aside: as Texts.aside.
        make: gives the items of some texts, without the brackets around all of them.
        brackets: whether the whole is a list; False: it is the item of a single text.
    """
    mark = b"[" if brackets else b""
    for part in cut(map(len, texts), Budget(max_tokens=BATCH_CHARACTERS)):
        yield mark + await aside(partial(make, part))
        mark = b","
    if brackets:
        yield b"]"


def _name_of(texts: Sequence[Text], at: int) -> str:
    """What a text is called in messages: by its number, unless it is the query of documents."""
    is_query = isinstance(texts[at], Query) and not isinstance(texts[0], Query)
    return "the query" if is_query else f"text {at}"


def _too_long(name: str, most: int | None) -> ApiError:
    return too_large_error(
        f"{name} has more than {most} tokens, the most that the model takes; send a shorter text, or ask for truncation"
    )


def _attempt(make: Callable[[], T]) -> T | ApiError:
    """What `make` returns, or why one request has no tokens, so that the others of its batch do not fail with it."""
    try:
        return make()
    except ApiError as error:
        return error
    except OverflowError:
        return tokenizer_error("a token id has more than 32 bits; send ids of this model's tokenizer")
