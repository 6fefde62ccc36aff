# SPDX-License-Identifier: Apache-2.0
"""The work of one GPU, or of some cores: reads, makes tokens, runs, restores the order, writes; all at once."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from padfree.runtime import Array, Budget, Session, cut, groups_of_shared, order_of_runs
from padfree.runtime.request import RaggedBatch, read_packed
from padfree.runtime.text import RERANK, TextInputs
from pyarrow.fs import FileType

from ..errors import BulkError
from ..heads import Head, make_head
from ..locations import Location
from ..manifest import MANIFEST, Manifest, read_manifest
from ..models import check_model, read_checked_tokenizer
from ..parts import Part, part_of, write_part
from ..queries import share_queries
from ..reading.row_groups import RowGroups
from ..reading.rows import BadRow, read_chunks
from ..reading.tokens import TokenizerPool, Tokens
from .clock import Clock, Countdown

OnBatch = Callable[[int, int, int], None]

AHEAD = 5
"""Shards that a worker has under way: some are read and tokenised, one is sorted, one runs, one is written."""
WRITERS = 2
TURN_S = 5e-4
"""After this time a thread lets another one run: Python's own 5 ms are two batches of a small model."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker needs to know; it travels to other processes and machines.

    Attributes:
        manifest: what is to be done.
        output: the folder of the result, as the user calls it.
        model: the plan or packed file.
        tokenizer: the tokenizer.json.
        tokenizers: processes that make tokens.
        cpu_threads: threads of a run, for .onnx files.
        runs: batches under way at once.
        allow_other_gpu: as for Session.
    """

    manifest: Manifest
    output: str
    model: Path
    tokenizer: Path
    tokenizers: int
    cpu_threads: int
    runs: int
    allow_other_gpu: bool


class WorkerTotals(NamedTuple):
    """What a worker has done since it began.

    Attributes:
        busy_s: seconds with a batch under way.
        span_s: seconds from the first batch to the end of the last one.
        tokens_saved: tokens that were not computed because texts of a batch, or pairs of a shard, shared them.
    """

    busy_s: float = 0.0
    span_s: float = 0.0
    tokens_saved: int = 0


@dataclass(frozen=True)
class FinishedShard:
    """A shard whose part is written: what it holds, and what its worker has done until then."""

    part: Part
    totals: WorkerTotals


@dataclass(frozen=True)
class _PreparedShard:
    """A shard whose batches can run.

    Attributes:
        shard: its number.
        ids: of its good rows.
        sequences: in the order of the batches.
        order: the number of each.
        of_rows: int64 [rows, 1], the number of each row's sequence; [rows, 2] of its query and its document, if these
            are computed apart.
        bad: rows without tokens.
        cut: how many rows lost the end of a text.
        head: takes the results.
    """

    shard: int
    ids: Any
    sequences: RaggedBatch
    order: Array
    of_rows: Array
    ends_row: Array
    bad: tuple[BadRow, ...]
    cut: int
    head: Head


class Worker:
    """Does shards, in a process of its own. Several are under way at once, and their parts appear in any order.

    Args:
        spec: what is to be done, and with what.
        on_batch: is called after every batch with its shard, rows and tokens, by the thread that ran it.

    Raises:
        BulkError: the output or the model is not the manifest's.
        padfree.runtime.SessionError: the model cannot be opened.
    """

    def __init__(self, spec: WorkerSpec, on_batch: OnBatch = lambda _shard, _rows, _tokens: None) -> None:
        sys.setswitchinterval(TURN_S)
        self._spec, self._manifest, self._on_batch = spec, spec.manifest, on_batch
        self._output = Location.of(spec.output)
        self._digest = spec.manifest.digest
        _check_output(self._output, self._digest)
        check_model(spec.manifest.model, spec.model)
        # Without CUDA graphs: the same batch takes the same kernels, whatever came before it.
        self._session = Session(
            spec.model,
            cuda_graphs=False,
            contexts=spec.runs,
            cpu_threads=spec.cpu_threads,
            allow_other_gpu=spec.allow_other_gpu,
        )
        metadata = self._session.metadata
        inputs, rows = TextInputs(metadata, str(spec.model)), metadata.ids_input().limit
        read_checked_tokenizer(spec.manifest.model, spec.tokenizer, rows)
        options = spec.manifest.options
        self._are_apart = options.task == RERANK and inputs.late is not None
        self._tokens_saved = 0  # of queries that other pairs of a shard have as well
        self._budget = Budget(options.max_tokens, options.max_sequences, self._session.budget.counts_padding)
        self._pool = TokenizerPool(spec.tokenizers, spec.manifest, spec.tokenizer, inputs, rows)
        self._clock = Clock()
        self._runs = ThreadPoolExecutor(spec.runs, "padfree-runs")
        self._writers = ThreadPoolExecutor(WRITERS, "padfree-writers")
        self._room = threading.BoundedSemaphore(AHEAD)
        self._wanted_shards: queue.SimpleQueue[tuple[int, Future[FinishedShard]] | None] = queue.SimpleQueue()
        self._read_shards: queue.SimpleQueue[tuple[int, Future[FinishedShard], list[Future[Tokens]]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._feed, self._prepare)]
        for thread in self._threads:
            thread.start()

    def submit(self, shard: int) -> Future[FinishedShard]:
        """Takes a shard; the future is done when its part is written, or holds the error."""
        future: Future[FinishedShard] = Future()
        self._wanted_shards.put((shard, future))
        return future

    def close(self) -> None:
        """Finishes what was taken, and frees everything."""
        self._wanted_shards.put(None)
        for thread in self._threads:
            thread.join()
        self._runs.shutdown()
        self._writers.shutdown()
        self._pool.close()
        self._session.close()

    def _feed(self) -> None:
        """The first thread: reads shards and hands their rows to the processes that make tokens."""
        groups = RowGroups()
        while (shard_request := self._wanted_shards.get()) is not None:
            shard, future = shard_request
            self._room.acquire()
            future.add_done_callback(lambda _: self._room.release())
            try:
                rows = read_chunks(self._manifest, self._manifest.shards[shard], groups)
                chunks = [self._pool.submit(chunk) for chunk in rows]
                self._read_shards.put((shard, future, chunks))
            except BaseException as error:
                future.set_exception(error)
        groups.close()
        self._read_shards.put(None)

    def _prepare(self) -> None:
        """The second thread: sorts what has tokens, and starts its batches."""
        while (read_shard := self._read_shards.get()) is not None:
            shard, future, chunks = read_shard
            try:
                self._start(self._prepare_shard(shard, [chunk.result() for chunk in chunks]), future)
            except BaseException as error:
                future.set_exception(error)

    def _prepare_shard(self, shard: int, chunks: Sequence[Tokens]) -> _PreparedShard:
        """A shard's sequences, checked, and their tokens in the order of the batches."""
        seq_lens = np.concatenate([np.zeros(0, np.int32), *(chunk.seq_lens for chunk in chunks)])
        columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
        metadata = self._session.metadata
        sequences = read_packed(columns, seq_lens, metadata)
        of_rows = np.arange(seq_lens.size)[:, None]
        if self._are_apart:
            sequences, of_rows = share_queries(sequences)
            self._tokens_saved += int(seq_lens.sum(dtype=np.int64) - sequences.seq_lens.sum(dtype=np.int64))
        order = order_of_runs(sequences, metadata)
        return _PreparedShard(
            shard=shard,
            ids=pa.concat_arrays([chunk.ids for chunk in chunks]),
            sequences=sequences.take(order),
            order=order,
            of_rows=of_rows,
            ends_row=np.isin(np.arange(order.size), of_rows[:, -1]),
            bad=tuple(row for chunk in chunks for row in chunk.bad),
            cut=sum(chunk.cut for chunk in chunks),
            head=make_head(self._manifest.options, metadata, sequences.seq_lens, of_rows),
        )

    def _start(self, shard: _PreparedShard, future: Future[FinishedShard]) -> None:
        """Starts the batches; the last one that ends hands the shard to a writer."""
        runs = list(cut(shard.sequences.seq_lens.tolist(), self._budget))
        write = partial(self._writers.submit, self._write, shard, future)
        countdown = Countdown(len(runs), write, future)
        for run, ragged in zip(runs, shard.sequences.parts(runs), strict=True):
            self._runs.submit(countdown.count, self._run, shard, run, ragged)
        if not runs:
            write()

    def _run(self, shard: _PreparedShard, run: slice, ragged: RaggedBatch) -> None:
        for group in groups_of_shared(ragged, self._session.metadata):
            part = ragged.take(group)
            with self._clock:
                outputs = self._session.run_fitting(part)
            sequences = shard.order[run][group]
            shard.head.add(sequences, outputs, part)
            rows = int(shard.ends_row[sequences].sum())
            self._on_batch(shard.shard, rows, int(part.seq_lens.sum(dtype=np.int64)))

    def _write(self, shard: _PreparedShard, future: Future[FinishedShard]) -> None:
        """A writer's work; rows whose results are no numbers join the bad ones."""
        try:
            good, bad = self._divide(shard)
            lens = np.empty_like(shard.sequences.seq_lens)
            lens[shard.order] = shard.sequences.seq_lens
            tokens = int(lens[shard.of_rows[good]].sum(dtype=np.int64))
            part = part_of(self._manifest, self._digest, shard.shard, tokens, shard.cut, bad)
            ids, columns = shard.ids.take(pa.array(good)), shard.head.columns(good)
            write_part(self._output, part, ids, columns, bad, self._manifest)
            tokens_saved = self._session.tokens_saved + self._tokens_saved
            future.set_result(FinishedShard(part, WorkerTotals(*self._clock.seconds(), tokens_saved)))
        except BaseException as error:
            future.set_exception(error)

    def _divide(self, shard: _PreparedShard) -> tuple[Array, list[BadRow]]:
        """The indices of rows with finite numbers, and the shard's bad rows in the order of the inputs."""
        finite = shard.head.finite()
        good = np.flatnonzero(finite)
        if len(good) == len(finite):
            return good, list(shard.bad)
        bad_rows = {(row.file, row.row) for row in shard.bad}
        rows = [
            (piece.file, row)
            for piece in self._manifest.shards[shard.shard]
            for row in range(piece.first, piece.first + piece.rows)
            if (piece.file, row) not in bad_rows
        ]
        reason = f"not finite: the model gave NaN, or more than {self._manifest.options.dtype} holds"
        bad = []
        for at in np.flatnonzero(~finite).tolist():
            file, row = rows[at]
            bad.append(BadRow(file, row, "not finite", reason, shard.ids[at].as_py()))
        return good, sorted([*shard.bad, *bad], key=lambda row: (row.file, row.row))


def _check_output(output: Location, digest: str) -> None:
    """Refuses a folder that is not the driver's: one that replaced it, or another machine's of this name."""
    if output.child(MANIFEST).info().type != FileType.File or read_manifest(output).digest != digest:
        raise BulkError(
            f"{output.shown_path}: holds no manifest of this job where the worker looks: another folder replaced it, "
            "or the machine has another disk under this name; put the folder back, or pass one that all machines share"
        )
