# SPDX-License-Identifier: Apache-2.0
"""From texts to rows: tokenised off the event loop, many requests together, and sent to the model in groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from padfree.runtime.budget import Budget, cut
from padfree.runtime.text_tasks import Served
from padfree.runtime.texts import IDS, TYPES
from padfree.runtime.word_pieces import WordPieces
from tokenizers import Encoding, Tokenizer

from ..errors import ApiError, busy, failed, not_tokenized, too_large
from ..metrics import Row
from .link import GROUP, Link

Array = npt.NDArray[Any]
Text = str | tuple[str, str]
Ids = list[int]
T = TypeVar("T")

BATCH_CHARACTERS = 1 << 14
"""Texts of waiting requests that are tokenised in one call; larger requests are tokenised beside them."""
BACKLOG_CHARACTERS = 1 << 23
"""The most that waits to be tokenised; more is refused, for nobody waits so long."""


@dataclass(frozen=True)
class Answer:
    """What became of a request's texts.

    Attributes:
        values: [texts, ...], or, where tokens have rows, those of all texts one after the other.
        seq_lens: tokens of each text.
        tokenize_s: seconds until there were tokens.
        queue_s: seconds that its slowest group waited for the model.
        run_s: seconds of that group's runs.
    """

    values: Array
    seq_lens: Array
    tokenize_s: float
    queue_s: float
    run_s: float

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return int(self.seq_lens.sum())


@dataclass(eq=False)
class _Job:
    """A request's texts on their way."""

    texts: Sequence[Text]
    ids: Sequence[Ids]
    truncate: bool
    characters: int
    done: asyncio.Future[_Tokens]


@dataclass(frozen=True)
class _Tokens:
    """Tokens of one request: lengths [B], and every token input [T]."""

    seq_lens: Array
    columns: tuple[Array, ...]


class Texts:
    """Answers texts.

    Args:
        served: the model.
        tokenizer: its tokenizer, without padding.
        link: to the process with the model.
        row: the numbers of this process.
    """

    def __init__(self, served: Served, tokenizer: Tokenizer, link: Link, row: Row) -> None:
        self._served = served
        self._words = WordPieces.of(tokenizer)
        self._tokenizer = tokenizer
        self._tokenizer.enable_truncation(served.max_length)
        self._plain_types = not any(tokenizer.encode("a").type_ids)
        self._link = link
        self._row = row
        self._loop = asyncio.get_running_loop()
        self._small = ThreadPoolExecutor(1, "padfree-texts")
        self._large = ThreadPoolExecutor(1, "padfree-large-texts")
        self._jobs: list[_Job] = []
        self._tokenizing = False
        self._characters = 0

    async def rows(self, texts: Sequence[Text], *, truncate: bool, until: float, ids: Sequence[Ids] = ()) -> Answer:
        """The model's rows for texts, or for ids in their place.

        Args:
            texts: texts, or pairs.
            truncate: cut texts beyond the model's length; otherwise they are an error.
            until: time.perf_counter() at which nobody waits any more.
            ids: token ids, special tokens included, where there are no texts.

        Raises:
            ApiError: texts that are too long, too much that waits, or a model that fails.
        """
        characters = sum(map(_characters, texts))
        if self._characters and self._characters + characters > BACKLOG_CHARACTERS:
            raise busy(f"{self._characters} characters of texts wait, allowed: {BACKLOG_CHARACTERS}; try again later")
        came = time.perf_counter()
        job = _Job(texts, ids, truncate, characters, self._loop.create_future())
        tokens = self._looked_up(job) if characters <= BATCH_CHARACTERS else None
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
        tokenize_s = time.perf_counter() - came
        self._row.observe("te_request_input_length", tokens.seq_lens.tolist())
        return await self._infer(tokens, until, tokenize_s)

    def close(self) -> None:
        """Ends the threads."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)

    def _next_batch(self) -> None:
        """Starts on what waits, unless the thread is busy: whatever comes meanwhile makes the next batch."""
        if self._tokenizing or not self._jobs:
            return
        self._tokenizing = True
        jobs = self._jobs
        run = next(cut((job.characters for job in jobs), Budget(max_tokens=BATCH_CHARACTERS)))
        self._jobs = jobs[run.stop :]
        self._start(self._small, jobs[run])

    def _start(self, pool: ThreadPoolExecutor, jobs: list[_Job]) -> None:
        future = self._loop.run_in_executor(pool, self._tokenize, jobs)
        future.add_done_callback(lambda done: self._tokenized(jobs, done, pool is self._small))

    def _tokenized(self, jobs: list[_Job], done: asyncio.Future[list[_Tokens | ApiError]], small: bool) -> None:
        if small:
            self._tokenizing = False
            self._next_batch()
        error = None if done.cancelled() else done.exception()
        results: Sequence[_Tokens | ApiError] = (
            [failed(f"the texts could not be tokenised: {error!r}")] * len(jobs)
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

    def _tokenize(self, jobs: list[_Job]) -> list[_Tokens | ApiError]:
        """A thread's work."""
        if len(jobs) == 1 and jobs[0].characters > BATCH_CHARACTERS:
            found = _attempt(partial(self._looked_up, jobs[0]))
            if found is not None:
                return [found]
        texts = [text for job in jobs for text in job.texts]
        encodings = iter(self._tokenizer.encode_batch_fast(texts) if texts else [])
        of_jobs = [(job, [next(encodings) for _ in job.texts]) for job in jobs]
        return [_attempt(partial(self._tokens, job, found)) for job, found in of_jobs]

    def _looked_up(self, job: _Job) -> _Tokens | None:
        """Tokens of plain texts; None where the library has to make them."""
        if self._words is None or job.ids or not self._plain_types:
            return None
        found = self._words.look_up(job.texts, self._served.max_length if job.truncate else None)
        return None if found.left else self._checked(found.counts, {IDS: found.ids, TYPES: found.types})

    def _tokens(self, job: _Job, encodings: list[Encoding]) -> _Tokens:
        if job.ids:
            return self._packed(job.ids, None)
        at = next((at for at, encoding in enumerate(encodings) if encoding.overflowing), None)
        if at is not None and not job.truncate:
            raise self._too_long(at)
        types = None if self._has_plain_types(job) else [encoding.type_ids for encoding in encodings]
        return self._packed([encoding.ids for encoding in encodings], types)

    def _packed(self, rows: Sequence[Ids], types: Sequence[Ids] | None) -> _Tokens:
        """Rows as the model takes them; types None: all are 0."""
        seq_lens = np.fromiter(map(len, rows), np.int32, len(rows))
        columns = {IDS: rows, **({} if types is None else {TYPES: types})}
        total = int(seq_lens.sum())
        return self._checked(seq_lens, {name: _flat(values, total) for name, values in columns.items()})

    def _checked(self, seq_lens: Array, columns: Mapping[str, Array]) -> _Tokens:
        """Lengths that the model takes, with the columns that it has; others are 0."""
        if seq_lens.max() > self._served.max_length:
            raise self._too_long(int(seq_lens.argmax()))
        if not seq_lens.all():
            raise not_tokenized(f"text {int(np.flatnonzero(seq_lens == 0)[0])} has no tokens; send one that has some")
        zeros = np.zeros_like(columns[IDS])
        return _Tokens(seq_lens, tuple(columns.get(name, zeros) for name in self._served.inputs))

    def _has_plain_types(self, job: _Job) -> bool:
        """Whether the types of all tokens are 0."""
        return TYPES not in self._served.inputs or (
            self._plain_types and all(isinstance(text, str) for text in job.texts)
        )

    def _too_long(self, at: int) -> ApiError:
        return too_large(
            f"text {at} has more than {self._served.max_length} tokens, the most that the model takes; send a shorter "
            "text, or ask for truncation"
        )

    async def _infer(self, tokens: _Tokens, until: float, tokenize_s: float) -> Answer:
        groups = [self._link.infer(*group, until) for group in _groups(tokens)]
        found = [await groups[0]] if len(groups) == 1 else await asyncio.gather(*groups)
        slowest = max(found, key=lambda rows: rows.queue_s + rows.run_s)
        values = found[0].values if len(found) == 1 else np.concatenate([rows.values for rows in found])
        self._row.observe("te_request_queue_duration", [slowest.queue_s])
        self._row.observe("te_request_inference_duration", [slowest.run_s])
        self._row.observe("te_request_tokenization_duration", [tokenize_s])
        return Answer(values, tokens.seq_lens, tokenize_s, slowest.queue_s, slowest.run_s)


def _attempt(make: Callable[[], T]) -> T | ApiError:
    """What `make` returns, or why one request has no tokens: the others of its batch are not to fail with it."""
    try:
        return make()
    except ApiError as error:
        return error
    except OverflowError:
        return not_tokenized("a token id has more than 32 bits; send ids of this model's tokenizer")


def _flat(rows: Sequence[Ids], total: int) -> Array:
    return np.fromiter(chain.from_iterable(rows), np.int32, total)


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def _groups(tokens: _Tokens) -> Iterator[tuple[Array, list[Array]]]:
    """Lengths and token inputs of the groups that a request is cut into."""
    lengths = tokens.seq_lens.tolist()
    start = 0
    for run in cut(lengths, GROUP):
        stop = start + sum(lengths[run])
        yield tokens.seq_lens[run], [column[start:stop] for column in tokens.columns]
        start = stop
