# SPDX-License-Identifier: Apache-2.0
"""From a model's outputs, run by run, to the columns of a part, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from padfree.contract.late_interaction import QUERY, LateInteraction
from padfree.contract.metadata import Metadata
from padfree.contract.texts import CLASSES, SEVERAL_LABELS, TextInfo
from padfree.runtime import Array, bounds_of, ranges, split_outputs
from padfree.runtime.answers import class_scores, classify, max_sims
from padfree.runtime.request import RaggedBatch
from padfree.runtime.text import CLASSIFY, RERANK, SPARSE, TOKENS, kept_tokens

from .manifest import Options

Columns = Mapping[str, Any]
VECTOR, VECTORS, SCORE, SCORES, INDICES, VALUES = "embedding", "embeddings", "score", "scores", "indices", "values"
LABEL, LABELS = "label", "labels"


class Head(Protocol):
    """Takes the outputs of runs, perhaps from several threads at once, and makes columns of them."""

    def add(self, at: Array, outputs: Mapping[str, Array], ragged: RaggedBatch) -> None:
        """Keeps a run's outputs.

        Args:
            at: which rows the run's sequences are.
            outputs: as the model gives them.
            ragged: what has run.
        """

    def finite(self) -> Array:
        """Which rows hold only finite numbers, bool [rows]."""

    def columns(self, rows: Array) -> Columns:
        """The columns of some rows, in their order."""


def make_head(options: Options, metadata: Metadata, seq_lens: Array, of_rows: Array) -> Head:
    """The head for the task in `options`.

    Args:
        options: the job's.
        metadata: the model's.
        seq_lens: tokens of every sequence.
        of_rows: int64 [rows, 1], the number of each row's sequence; [rows, 2] of its query and its document.
    """
    dtype = np.dtype(options.dtype)
    if options.task == SPARSE:
        return SparseHead(options.head, dtype, len(seq_lens))
    if options.task == RERANK and metadata.text is not None and metadata.text.late is not None:
        return MaxSimHead(options.head, dtype, metadata, seq_lens, metadata.text.late, of_rows)
    if options.task == TOKENS:
        late = None if metadata.text is None else metadata.text.late
        if late is not None and options.prompt != QUERY:
            return DocumentHead(options.head, dtype, metadata, seq_lens, late)
        return TokenHead(options.head, dtype, metadata, seq_lens)
    if options.task == CLASSIFY and len(options.columns) == 1:
        return LabelHead(options.head, dtype, metadata.text or TextInfo(CLASSES), len(seq_lens))
    return DenseHead(options.head, dtype, options.task, len(seq_lens))


class _Vectors:
    """Rows of one width, which is that of the first run."""

    def __init__(self, name: str, dtype: np.dtype[Any], rows: int) -> None:
        self._name, self._dtype, self._rows = name, dtype, rows
        self._values: Array | None = None

    def _keep(self, at: Array | slice, values: Array) -> None:
        if self._values is None:
            self._values = np.empty((self._rows, values.shape[1]), self._dtype)
        with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite, which is found later
            self._values[at] = values

    def _read_values(self) -> Array:
        return np.zeros((0, 1), self._dtype) if self._values is None else self._values


class DenseHead(_Vectors):
    """One vector per row: FixedSizeList, or a number where scores have one class."""

    def __init__(self, name: str, dtype: np.dtype[Any], task: str, rows: int) -> None:
        super().__init__(name, dtype, rows)
        self._task = task

    def add(self, at: Array, outputs: Mapping[str, Array], ragged: RaggedBatch) -> None:
        """As Head."""
        self._keep(at, outputs[self._name][: len(ragged.seq_lens)].reshape(len(ragged.seq_lens), -1))

    def finite(self) -> Array:
        """As Head."""
        return np.asarray(np.isfinite(self._read_values()).all(1))

    def columns(self, rows: Array) -> Columns:
        """As Head."""
        values = self._read_values()[rows]
        if self._task == RERANK and values.shape[1] == 1:
            return {SCORE: pa.array(values[:, 0])}
        name = SCORES if self._task in (RERANK, CLASSIFY) else VECTOR
        return {name: _vectors(values)}


class LabelHead(DenseHead):
    """The label of a text with its score, and the scores of all labels, as padfree.Model has them."""

    def __init__(self, name: str, dtype: np.dtype[Any], info: TextInfo, rows: int) -> None:
        super().__init__(name, np.dtype(np.float32), CLASSIFY, rows)  # as a float16, a logit may be another label's
        self._info, self._score_dtype = info, dtype

    def finite(self) -> Array:
        """As Head."""
        values = self._read_values()
        with np.errstate(over="ignore", invalid="ignore"):
            scores = class_scores(values, self._info.problem, activated=self._info.is_activated)
            is_finite = np.isfinite(values) & np.isfinite(scores.astype(self._score_dtype))
        return np.asarray(is_finite.all(1))

    def columns(self, rows: Array) -> Columns:
        """As Head."""
        values = self._read_values()[rows]
        classes = classify(values, self._info)
        scores = np.asarray([list(item.scores.values()) for item in classes], self._score_dtype).reshape(values.shape)
        columns = {
            LABEL: pa.array([item.label for item in classes], pa.string()),
            SCORE: pa.array([item.score for item in classes], pa.from_numpy_dtype(self._score_dtype)),
            SCORES: _vectors(scores),
        }
        if self._info.problem == SEVERAL_LABELS:
            columns[LABELS] = pa.array([list(item.labels) for item in classes], pa.list_(pa.string()))
        return columns


class TokenHead(_Vectors):
    """A vector for every token: List of FixedSizeList."""

    def __init__(self, name: str, dtype: np.dtype[Any], metadata: Metadata, seq_lens: Array) -> None:
        super().__init__(name, dtype, int(seq_lens.sum(dtype=np.int64)))
        self._metadata, self._seq_lens = metadata, seq_lens
        self._bounds = bounds_of(seq_lens)

    def add(self, at: Array, outputs: Mapping[str, Array], ragged: RaggedBatch) -> None:
        """As Head."""
        parts: Sequence[Array] = split_outputs(outputs, ragged, self._metadata)[self._name]
        for row, part in zip(at.tolist(), parts, strict=True):
            self._keep(slice(self._bounds[row], self._bounds[row + 1]), part.reshape(len(part), -1))

    def finite(self) -> Array:
        """As Head."""
        tokens = np.isfinite(self._read_values()).all(1)
        bad = np.repeat(np.arange(len(self._seq_lens)), self._seq_lens)[~tokens]
        is_finite = np.ones(len(self._seq_lens), bool)
        is_finite[bad] = False
        return is_finite

    def columns(self, rows: Array) -> Columns:
        """As Head."""
        lens, values = self._seq_lens[rows].astype(np.int64), self._read_values()
        if len(rows) < len(self._seq_lens):
            values = values[self._tokens_of(rows)]
        return {VECTORS: _lists(lens, values)}

    def _tokens_of(self, rows: Array) -> Array:
        """The indices of all tokens of some rows, int64."""
        return ranges(self._bounds[rows], self._seq_lens[rows])


class DocumentHead(TokenHead):
    """As TokenHead, without the vectors of tokens that documents leave out; `late` says which these are."""

    def __init__(
        self, name: str, dtype: np.dtype[Any], metadata: Metadata, seq_lens: Array, late: LateInteraction
    ) -> None:
        super().__init__(name, dtype, metadata, seq_lens)
        self._late, self._ids = late, metadata.ids_input().name
        self._mask = np.ones(int(seq_lens.sum(dtype=np.int64)), np.bool_)

    def add(self, at: Array, outputs: Mapping[str, Array], ragged: RaggedBatch) -> None:
        """As Head."""
        super().add(at, outputs, ragged)
        mask = kept_tokens(self._late, ragged.tokens[self._ids], ragged.seq_lens, self._are_queries(at))
        self._mask[self._tokens_of(at)] = mask

    def columns(self, rows: Array) -> Columns:
        """As Head."""
        tokens, number = self._tokens_of(rows), np.repeat(np.arange(len(rows)), self._seq_lens[rows])
        mask = self._mask[tokens]
        lens = np.bincount(number[mask], minlength=len(rows))
        return {VECTORS: _lists(lens, self._read_values()[tokens[mask]])}

    def _are_queries(self, at: Array) -> Array:
        """Which of the sequences with these numbers are queries, bool."""
        return np.zeros(at.size, np.bool_)


class MaxSimHead(DocumentHead):
    """Scores of pairs by the vectors of their tokens; `pairs`, int64 [rows, 2], has each row's query and document."""

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any],
        metadata: Metadata,
        seq_lens: Array,
        late: LateInteraction,
        pairs: Array,
    ) -> None:
        super().__init__(name, np.dtype(np.float32), metadata, seq_lens, late)
        self._score_dtype, self._pairs = dtype, pairs
        self._is_query = np.zeros(len(seq_lens), np.bool_)
        self._is_query[pairs[:, 0]] = True

    def finite(self) -> Array:
        """As Head."""
        return np.asarray(super().finite()[self._pairs].all(1))

    def columns(self, rows: Array) -> Columns:
        """As Head."""
        pairs = self._pairs[rows]
        queries = {query: self._vectors_that_count(query) for query in np.unique(pairs[:, 0]).tolist()}
        scores = [
            max_sims(queries[query], [self._vectors_that_count(document)])[0] for query, document in pairs.tolist()
        ]
        return {SCORE: pa.array(np.asarray(scores, self._score_dtype))}

    def _vectors_that_count(self, sequence: int) -> Array:
        """The vectors of the tokens that count, float32 [tokens, N]."""
        tokens = slice(*self._bounds[sequence : sequence + 2])
        return np.asarray(self._read_values()[tokens][self._mask[tokens]], np.float32)

    def _are_queries(self, at: Array) -> Array:
        return np.asarray(self._is_query[at])


class SparseHead:
    """The weights of words: for each text, the growing indices of those that are not zero, and their weights."""

    def __init__(self, name: str, dtype: np.dtype[Any], rows: int) -> None:
        self._name, self._dtype = name, dtype
        self._indices: list[Array] = [np.zeros(0, np.int32)] * rows
        self._weights: list[Array] = [np.zeros(0, dtype)] * rows

    def add(self, at: Array, outputs: Mapping[str, Array], ragged: RaggedBatch) -> None:
        """As Head."""
        dense = outputs[self._name][: len(ragged.seq_lens)]
        rows, words = np.nonzero(dense)
        with np.errstate(over="ignore"):
            weights = dense[rows, words].astype(self._dtype)
        cuts = np.searchsorted(rows, np.arange(1, len(dense)))
        indices = np.split(words.astype(np.int32), cuts)
        for row, some, values in zip(at.tolist(), indices, np.split(weights, cuts), strict=True):
            self._indices[row], self._weights[row] = some, values

    def finite(self) -> Array:
        """As Head."""
        return np.array([bool(np.isfinite(values).all()) for values in self._weights], bool)

    def columns(self, rows: Array) -> Columns:
        """As Head."""
        chosen_rows = rows.tolist()
        offsets = pa.array(bounds_of([len(self._indices[row]) for row in chosen_rows]), pa.int32())

        def lists(parts: list[Array], empty: Array) -> Any:
            return pa.ListArray.from_arrays(
                offsets, pa.array(np.concatenate([empty, *(parts[row] for row in chosen_rows)]))
            )

        return {
            INDICES: lists(self._indices, np.zeros(0, np.int32)),
            VALUES: lists(self._weights, np.zeros(0, self._dtype)),
        }


def _lists(lens: Array, values: Array) -> Any:
    """Vectors of tokens, as a list of so many for each row."""
    return pa.ListArray.from_arrays(pa.array(bounds_of(lens), pa.int32()), _vectors(values))


def _vectors(values: Array) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])
