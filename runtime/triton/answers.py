# SPDX-License-Identifier: Apache-2.0
"""From the requests of one call to their answers: what EncoderModel does, without the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..batching.costs import CostTable
from ..batching.partition import check_alike, partition
from ..budget import Budget, cut
from ..errors import SessionError
from ..feeds import split_outputs
from ..request import RaggedBatch
from ..rows import Array
from ..session import Session
from ..shared_values import groups_of_shared
from .items import Item, join, read_item, stack


def never() -> bool:
    """Whether a request that cannot be cancelled is cancelled."""
    return False


@dataclass(frozen=True)
class TritonRequest:
    """Input name -> array, the names of the outputs that the caller wants, and whether the caller has gone."""

    tensors: Mapping[str, Array]
    output_names: Iterable[str]
    is_cancelled: Callable[[], bool] = never


@dataclass(frozen=True)
class Failure:
    """Why a request has no outputs.

    Attributes:
        message: what its caller is told.
        is_refusal: whether the request is at fault, not the run.
        busy: whether too much waits, so that the same request may be answered later.
        cancelled: whether nobody waits for the answer any more.
    """

    message: str
    is_refusal: bool
    busy: bool = False
    cancelled: bool = False


CANCELLED = Failure("the request was cancelled while it ran", is_refusal=False, cancelled=True)
Reply = dict[str, Array] | Failure
ChooseRuns = Callable[[list[int]], Iterable[Sequence[int]]]
"""From the lengths of a call's sequences to runs of their indexes; each index once."""
OnRun = Callable[[RaggedBatch], None]
T = TypeVar("T")

NO_ROW: Array = np.empty(0)


def first_come(budget: Budget) -> ChooseRuns:
    """Runs in the order in which sequences came, each as large as the budget allows."""
    return lambda lengths: (range(run.start, run.stop) for run in cut(lengths, budget))


def cheapest(costs: CostTable, budget: Budget) -> ChooseRuns:
    """The runs whose measured costs add up to the least: what padded engines want.

    Raises:
        SessionError: the table is of another kind of model.
    """
    check_alike(costs, budget)
    return lambda lengths: partition(lengths, costs, budget)


def attempt(make: Callable[..., T], *arguments: Any) -> T | Failure:
    """What `make` returns, or the reason why it refuses one request."""
    try:
        return make(*arguments)
    except SessionError as error:
        return Failure(str(error), is_refusal=True)


class Answerer:
    """Packs requests into runs and gives every request its answer.

    A request that does not fit the model fails alone, and so do the requests of a run that fails.

    Args:
        session: runs the model.
        choose_runs: which sequences share a run.
        on_run: is told every batch that has run.
    """

    def __init__(self, session: Session, choose_runs: ChooseRuns, on_run: OnRun) -> None:
        self._session = session
        self._metadata = session.metadata
        self._choose_runs = choose_runs
        self._on_run = on_run
        self._outputs = {item.name: item for item in self._metadata.outputs}

    def answer(self, requests: Sequence[TritonRequest]) -> list[Reply]:
        """One answer per request, in their order."""
        items = [attempt(read_item, request.tensors, self._metadata) for request in requests]
        batch, items = self._join(items)
        results = None if batch is None else self._run(batch, _owners(requests, items))
        answers: list[Reply] = []
        start = 0
        for request, item in zip(requests, items, strict=True):
            if isinstance(item, Failure):
                answers.append(item)
                continue
            assert results is not None  # there is a batch where there is an item
            stop = start + len(item.seq_lens)
            answers.append(self._reply(request, item, results, range(start, stop)))
            start = stop
        return answers

    def _join(self, items: list[Item | Failure]) -> tuple[RaggedBatch | None, list[Item | Failure]]:
        """All items as one batch; those that do not fit the model become failures."""
        good = [item for item in items if isinstance(item, Item)]
        if not good:
            return None, items
        batch = attempt(join, good, self._metadata)
        if isinstance(batch, RaggedBatch):
            return batch, items
        # Whose fault it is shows when each is looked at alone.
        alone = [attempt(join, [item], self._metadata) if isinstance(item, Item) else item for item in items]
        return self._join(
            [result if isinstance(result, Failure) else item for result, item in zip(alone, items, strict=True)]
        )

    def _run(self, batch: RaggedBatch, owners: Sequence[TritonRequest]) -> _Results:
        rows = {name: [NO_ROW] * batch.seq_lens.size for name in self._outputs}
        failures: dict[int, Failure] = {}
        begun_owners: set[int] = set()
        for planned_run in self._runs_of(batch):
            run = self._still_wanted(planned_run, owners, begun_owners, failures)
            if not run:
                continue
            part = batch.take(run)
            try:
                outputs = self._session.backend.run(self._session.feeds(part))
                parts = split_outputs(outputs, part, self._metadata)
            except SessionError as error:
                failures.update(dict.fromkeys(run, Failure(str(error), is_refusal=False)))
                continue
            for name, results in parts.items():
                for sequence, row in zip(run, results, strict=True):
                    rows[name][sequence] = row
            self._on_run(part)
        return _Results(rows, failures)

    def _runs_of(self, batch: RaggedBatch) -> list[Sequence[int]]:
        """The runs of a batch; what the model has once for a run is the same for its sequences."""
        groups = groups_of_shared(batch, self._metadata)
        if len(groups) == 1:
            return list(self._choose_runs(batch.seq_lens.tolist()))
        return [
            [group[at] for at in run] for group in groups for run in self._choose_runs(batch.seq_lens[group].tolist())
        ]

    def _still_wanted(
        self, run: Sequence[int], owners: Sequence[TritonRequest], begun_owners: set[int], failures: dict[int, Failure]
    ) -> Sequence[int]:
        """The sequences of a run that somebody waits for.

        To ask takes a round trip to the server: only requests are asked that have been in a run before, for those are
        large.
        """
        again = {id(owners[at]): owners[at] for at in run if id(owners[at]) in begun_owners}
        begun_owners.update(id(owners[at]) for at in run)
        cancelled_keys = {key for key, request in again.items() if request.is_cancelled()}
        if not cancelled_keys:
            return run
        positions = [at for at in run if id(owners[at]) in cancelled_keys]
        failures.update(dict.fromkeys(positions, CANCELLED))
        return [at for at in run if id(owners[at]) not in cancelled_keys]

    def _reply(self, request: TritonRequest, item: Item, results: _Results, sequences: range) -> Reply:
        if results.failures:
            for sequence in sequences:
                if sequence in results.failures:
                    return results.failures[sequence]
        return {
            name: stack(results.rows[name][sequences.start : sequences.stop], item, self._outputs[name])
            for name in request.output_names
        }


def _owners(requests: Sequence[TritonRequest], items: Sequence[Item | Failure]) -> list[TritonRequest]:
    """The request of every sequence of a batch."""
    pairs = zip(requests, items, strict=True)
    return [request for request, item in pairs if isinstance(item, Item) for _ in item.seq_lens]


@dataclass(frozen=True)
class _Results:
    """Rows of every sequence by output name, and why the sequences of a failed run have none."""

    rows: Mapping[str, list[Array]]
    failures: Mapping[int, Failure]
