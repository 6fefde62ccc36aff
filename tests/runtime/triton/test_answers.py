# SPDX-License-Identifier: Apache-2.0
"""How the Python backend's encoder answers the requests of one call, without a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Budget, CostTable
from padfree.runtime.onnx_backend import OnnxBackend
from padfree.runtime.request import RaggedBatch
from padfree.runtime.triton.answers import CANCELLED, Answerer, ChooseRuns, Failure, TritonRequest, cheapest, first_come

Array = npt.NDArray[Any]
ModelWriter = Callable[..., Path]

OUTPUTS = ("hidden", "lengths")


def rows(*sequences: Sequence[int], width: int | None = None) -> dict[str, Array]:
    grid = np.zeros((len(sequences), width or max(map(len, sequences))), np.int32)
    for row, sequence in zip(grid, sequences, strict=True):
        row[: len(sequence)] = sequence
    return {"input_ids": grid, "seq_lens": np.array([[len(sequence)] for sequence in sequences], np.int32)}


class Runs:
    """An Answerer over a model whose `hidden` is (id, type) of every token; records the lengths in every run."""

    def __init__(self, session: Session, plan: ChooseRuns) -> None:
        self.lengths: list[list[int]] = []
        self._answerer = Answerer(session, plan, self._ran)

    def answer(self, *tensors: Mapping[str, Array], wanted: Sequence[str] = OUTPUTS) -> list[Any]:
        return self._answerer.answer([TritonRequest(item, wanted) for item in tensors])

    def _ran(self, batch: RaggedBatch) -> None:
        self.lengths.append(batch.seq_lens.tolist())


@pytest.fixture
def runs(packed_model: ModelWriter) -> Runs:
    return Runs(Session(packed_model()), first_come(Budget(max_tokens=10)))


def test_requests_are_cut_into_runs_and_put_together_again(runs: Runs) -> None:
    first, second, third = runs.answer(rows([1, 2, 3, 4]), rows([5], [6, 7, 8, 9, 10], [11]), rows([12]))
    assert runs.lengths == [[4, 1, 5], [1, 1]]  # the second request is in both runs
    assert first["hidden"][..., 0].tolist() == [[1, 2, 3, 4]]
    assert second["hidden"][..., 0].tolist() == [[5, 0, 0, 0, 0], [6, 7, 8, 9, 10], [11, 0, 0, 0, 0]]
    assert second["lengths"].tolist() == [[1], [5], [1]]
    assert third["hidden"].tolist() == [[[12, 0]]]


def test_one_padded_sequence_comes_back_in_its_rows_width(runs: Runs) -> None:
    (answer,) = runs.answer(rows([7, 8], width=4))
    assert answer["hidden"][..., 0].tolist() == [[7, 8, 0, 0]]


def test_rows_of_equal_length_need_no_seq_lens(runs: Runs) -> None:
    (answer,) = runs.answer({"input_ids": np.array([[1, 2], [3, 4]], np.int32)})
    assert answer["hidden"][..., 0].tolist() == [[1, 2], [3, 4]]


def test_token_types_of_some_requests(runs: Runs) -> None:
    typed = {**rows([1, 2]), "token_type_ids": np.array([[0, 1]], np.int32)}
    _, answer, _ = runs.answer(rows([9]), typed, rows([9]))
    assert answer["hidden"].tolist() == [[[1, 0], [2, 1]]]


def test_only_wanted_outputs_are_made(runs: Runs) -> None:
    (answer,) = runs.answer(rows([1]), wanted=["lengths"])
    assert answer.keys() == {"lengths"}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no sequences": ({"input_ids": np.zeros((0, 3), np.int32)}, r"'input_ids' has shape [0, 3], allowed: [sequences"),
    "floats": ({"input_ids": np.ones((1, 3), np.float32)}, "'input_ids' has type float32, allowed: integers"),
    "one axis": ({"input_ids": np.ones(3, np.int32)}, "'input_ids' has shape [3], allowed: [sequences, tokens]"),
    "unknown": ({**rows([1]), "mask": np.ones((1, 1), np.int32)}, "unknown input 'mask', the model's token inputs are"),
    "no ids": ({"token_type_ids": np.ones((1, 1), np.int32)}, "input 'input_ids' is missing"),
    "too long": (rows(list(range(17))), "sequence 0 has 17 tokens, the model has 16 positions; truncate it"),
    "second too long": (rows([1], list(range(17))), "sequence 1 has 17 tokens"),
    "value": (rows([1], [2, 100]), "'input_ids' value 100 at sequence 1, position 1: allowed 0..99"),
    "lens": ({**rows([1, 2]), "seq_lens": np.array([2], np.int32)}, "'seq_lens' has shape [1], allowed: [1, 1]"),
}


def test_bad_requests_fail_alone_and_say_why(runs: Runs) -> None:
    good = rows([1, 2])
    requests = [item for tensors, _ in BAD.values() for item in (good, tensors)]
    answers = runs.answer(*requests, good)
    for answer, (kind, (_, message)) in zip(answers[1::2], BAD.items(), strict=True):
        assert isinstance(answer, Failure), kind
        assert answer.is_refusal
        assert message in answer.message
    for answer in answers[0::2]:
        assert answer["hidden"][..., 0].tolist() == [[1, 2]]


def test_nothing_runs_for_bad_requests_alone(runs: Runs) -> None:
    runs.answer(rows([100]))
    assert runs.lengths == []


def test_a_failing_run_fails_its_requests_alone(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    run = OnnxBackend.run

    def fail_on_five(self: Any, feeds: Mapping[str, Any], **options: Any) -> Any:
        if 5 in feeds["input_ids"]:
            raise SessionError("the GPU is gone")
        return run(self, feeds, **options)

    monkeypatch.setattr(OnnxBackend, "run", fail_on_five)
    first, second, third = runs.answer(rows([1] * 8), rows([2], [5, 5, 5]), rows([3] * 8))
    assert first["lengths"].tolist() == [[8]]
    assert second == Failure("the GPU is gone", is_refusal=False)
    assert third["lengths"].tolist() == [[8]]


def test_padded_models_are_served_too(padded_model: ModelWriter) -> None:
    runs = Runs(Session(padded_model()), first_come(Budget(max_tokens=6, counts_padding=True)))
    first, second = runs.answer(rows([1, 2, 3], [4]), rows([5], [6, 7]), wanted=["hidden", "kept"])
    assert runs.lengths == [[3, 1], [1, 2]]  # six tokens with padding, then four
    assert first["hidden"][..., 0].tolist() == [[1001, 1002, 1003], [1004, 0, 0]]
    assert second["kept"].tolist() == [[1], [2]]


def padded_costs() -> CostTable:
    """A run costs its padded tokens, and a little more."""
    lengths, batches = (1, 2, 3), (1, 2, 4)
    cost_ms = tuple(tuple(length * batch + 0.1 for batch in batches) for length in lengths)
    return CostTable("padded", lengths, batches, cost_ms)


def test_the_cheapest_runs_put_like_with_like(padded_model: ModelWriter) -> None:
    plan = cheapest(padded_costs(), Budget(max_tokens=100, counts_padding=True))
    runs = Runs(Session(padded_model()), plan)
    first, second, third = runs.answer(rows([1, 2, 3], [4]), rows([5], [6]), rows([7, 8, 9]), wanted=["hidden"])
    assert runs.lengths == [[1, 1, 1], [3, 3]]
    assert first["hidden"][..., 0].tolist() == [[1001, 1002, 1003], [1004, 0, 0]]
    assert second["hidden"][..., 0].tolist() == [[1005], [1006]]
    assert third["hidden"][..., 0].tolist() == [[1007, 1008, 1009]]


def test_costs_of_another_kind_of_model_are_refused() -> None:
    with pytest.raises(SessionError, match="the cost table is of a padded model"):
        cheapest(padded_costs(), Budget(max_tokens=100))


def test_a_request_of_many_runs_that_is_cancelled_takes_no_more_of_them(packed_model: ModelWriter) -> None:
    lengths: list[list[int]] = []
    answerer = Answerer(
        Session(packed_model()), first_come(Budget(max_tokens=4)), lambda batch: lengths.append(batch.seq_lens.tolist())
    )
    asked = [0, 0]

    def is_gone() -> bool:
        asked[0] += 1
        return len(lengths) >= 2

    def there() -> bool:
        asked[1] += 1
        return True  # never called, as the request takes a single run

    large = TritonRequest(rows(*([[1, 2]] * 9)), OUTPUTS, is_gone)
    small = TritonRequest(rows([3]), OUTPUTS, there)
    answers = answerer.answer([large, small])
    assert answers[0] == CANCELLED
    assert isinstance(answers[1], dict)
    assert answers[1]["lengths"].tolist() == [[1]]
    assert lengths == [[2, 2], [2, 2], [1]]
    assert asked == [4, 0]
