# SPDX-License-Identifier: Apache-2.0
"""Runs a new plan on the GPU that it was built on, before it is written, and compares its answers with a reference."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.contract.metadata import Metadata
from padfree.runtime import Array, Backend, OutputSizeError, RunOptions, SessionError

from ..compare.batches import PREFIX
from ..errors import BuildError
from .batches import CheckedBatch
from .errors import Bound, OutputCheck, bound_of, check_output, token_rows
from .reference import Reference

SAMPLES = 32
"""Numbers of an output of a batch that are kept with the plan, evenly spaced over those of tokens and sequences."""


@dataclass(frozen=True)
class EngineCheck:
    """What a check found. `not_compared` are outputs whose numbers cannot be assigned to sequences."""

    reference: Reference
    outputs: tuple[OutputCheck, ...]
    not_compared: tuple[str, ...]
    answers: tuple[Mapping[str, Mapping[str, Any]], ...]
    seconds: float

    @property
    def problem(self) -> str:
        """Why the plan is refused; empty where it is not."""
        wrong = [item for item in self.outputs if item.problem]
        return "; ".join(f"output '{item.output}' has {item.problem} (batch '{item.batch}')" for item in wrong)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the plan's metadata: with them the check can be repeated elsewhere."""
        return {
            "reference": self.reference.made_by,
            "reference_seconds": self.reference.seconds,
            "seconds": self.seconds,
            "outputs": {
                item.output: {
                    "relative": _round(item.relative),
                    "absolute": _round(item.absolute),
                    "cosine": None if item.cosine is None else round(item.cosine, 7),
                    "equal": _round(item.equal),
                    "batch": item.batch,
                    "allowed": asdict(item.bound),
                }
                for item in self.outputs
            },
            "not_compared": list(self.not_compared),
            "batches": [
                {**_describe(batch), "answers": answers}
                for batch, answers in zip(self.reference.batches, self.answers, strict=True)
            ],
        }


def open_engine(plan: Path, content: bytes | memoryview, metadata: Metadata, device: int) -> Backend:
    """A backend that runs a plan before it is written; `plan` names it in messages."""
    from padfree.runtime.gpu.tensorrt_backend import TensorRTBackend

    options = RunOptions(cuda_graphs=False, contexts=1)
    return TensorRTBackend(plan, metadata, device=device, options=options, content=content)


def check_engine(
    plan: Path,
    content: bytes | memoryview,
    metadata: Metadata,
    reference: Reference,
    *,
    device: int,
    compare: Callable[[], str],
) -> EngineCheck:
    """Runs the batches of a reference through a plan.

    Args:
        plan: where it is to be written.
        content: the plan.
        metadata: its own, with the engine's entry.
        reference: batches and their right answers.
        device: CUDA device number.
        compare: gives the command that finds the first node that differs.

    Raises:
        BuildError: it does not run, or its answers are further off than those of a correct engine can be.
    """
    start = time.monotonic()
    try:
        answers = _answers(open_engine(plan, content, metadata, device), metadata, reference.batches)
    except OutputSizeError as error:
        raise BuildError(f"{error}; {plan} was not written") from error
    except SessionError as error:
        raise BuildError(
            f"the engine does not run on the GPU that it was built on: {_refusal(plan, str(error), compare)}"
        ) from error
    check = _compare(metadata, reference, answers, start)
    if check.problem:
        raise BuildError(
            f"the engine gives other answers than {reference.made_by}: {_refusal(plan, check.problem, compare)}"
        )
    return check


def _refusal(plan: Path, problem: str, compare: Callable[[], str]) -> str:
    return f"{problem}; {plan} was not written. Find what differs first: {compare()}; --no-verify skips this check"


def _answers(backend: Backend, metadata: Metadata, batches: Sequence[CheckedBatch]) -> list[dict[str, Array]]:
    """The engine's arrays for all batches; closes the engine."""
    try:
        answers = [_run(backend, batch, metadata) for batch in batches]
    except SessionError:
        with contextlib.suppress(SessionError):  # after a failed kernel nothing works; the first error counts
            backend.close()
        raise
    backend.close()
    return answers


def _run(backend: Backend, batch: CheckedBatch, metadata: Metadata) -> dict[str, Array]:
    try:
        return {name: np.array(value) for name, value in backend.run(batch.inputs(metadata)).items()}
    except OutputSizeError:
        raise  # it has nothing to do with the batch
    except SessionError as error:
        lengths = batch.seq_lens.tolist()
        raise SessionError(f"on the batch '{batch.name}' (lengths {lengths}): {error}") from error


def _compare(
    metadata: Metadata, reference: Reference, engine_answers: Sequence[Mapping[str, Array]], start: float
) -> EngineCheck:
    batches = reference.batches
    outputs, others = list[OutputCheck](), list[str]()
    answers: list[dict[str, Any]] = [{} for _ in batches]
    for item in metadata.outputs:
        entry = next(output for output in metadata.raw["outputs"] if output["name"] == item.name)
        if item.unknown_size is not None:
            others.append(item.name)
            continue
        pairs = [
            tuple(
                token_rows(side[item.name], entry, batch, is_packed=metadata.is_packed) for side in (expected, actual)
            )
            for batch, expected, actual in zip(batches, reference.answers, engine_answers, strict=True)
        ]
        outputs.append(_check(entry, batches, pairs, bound_of(metadata, item.name)))
        for at, (expected, actual) in enumerate(pairs):
            if expected is not None and actual is not None:
                answers[at][item.name] = _sample(expected, actual)
    return EngineCheck(reference, tuple(outputs), tuple(others), tuple(answers), round(time.monotonic() - start, 2))


def _check(
    entry: Mapping[str, Any],
    batches: Sequence[CheckedBatch],
    pairs: Sequence[tuple[Array | None, ...]],
    bound: Bound,
) -> OutputCheck:
    used_batches, expected_rows, actual_rows = list[CheckedBatch](), list[Array](), list[Array]()
    for batch, (expected, actual) in zip(batches, pairs, strict=True):
        if expected is None or actual is None or expected.shape != actual.shape:
            sizes = [None if side is None else list(side.shape) for side in (actual, expected)]
            problem = f"numbers of {sizes[0]}, expected are {sizes[1]}"
            return OutputCheck(entry["name"], bound, batch=batch.name, problem=problem)
        if expected.size:
            used_batches.append(batch)
            expected_rows.append(expected)
            actual_rows.append(actual)
    if not used_batches:
        return OutputCheck(entry["name"], bound)
    return check_output(entry, used_batches, expected_rows, actual_rows, bound)


def _sample(expected: Array, actual: Array) -> dict[str, Any]:
    """Some expected numbers, the shape of all, and a digest of the engine's, to compare other runs with."""
    numbers = expected.reshape(-1)[sample_indices(expected.size)]
    return {"shape": list(expected.shape), "right": _text(numbers), "engine_sha256": answer_digest(actual)}


def sample_indices(size: int) -> npt.NDArray[np.int64]:
    """Which of so many numbers are kept."""
    return np.linspace(0, max(0, size - 1), min(SAMPLES, size)).astype(np.int64)


def answer_digest(rows: Array) -> str:
    """A digest of numbers, exact to the last bit."""
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()[:16]


def _describe(batch: CheckedBatch) -> dict[str, Any]:
    """A batch with its tokens and filler; lists of numbers are texts, which take one line in a file."""
    entry = {
        "name": batch.name,
        "seq_lens": batch.seq_lens.tolist(),
        "filler_tokens": batch.filler_tokens,
        "tokens": {
            name: _text(np.concatenate([grid[batch.mask], batch.filler.get(name, grid[0, :0])]))
            for name, grid in batch.feeds.items()
            if grid.dtype.kind != "f"  # embeddings are too many numbers to be kept
        },
    }
    if batch.of_sequences:
        entry["of_sequences"] = {name: _text(values) for name, values in batch.of_sequences.items()}
    if batch.prefix is not None:
        entry["prefix"] = _text(batch.prefix)
    if batch.kind != PREFIX:
        entry["slots"] = ["".join(map(str, row)) for row in batch.mask.astype(np.int8).tolist()]
    return entry


def _text(values: Array) -> str:
    return " ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values.reshape(-1).tolist())


def _round(value: float | None) -> float | None:
    """Three digits; what JSON has no number for is None."""
    return float(f"{value:.3g}") if value is not None and np.isfinite(value) else None
