# SPDX-License-Identifier: Apache-2.0
"""What a worker requires of its connections, for every protocol."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from tritonclient.utils import np_to_triton_dtype

from .traffic import Request

Array = npt.NDArray[Any]

TOLERANCE = 0.05
"""Relative to the reference's largest value: half precision in other batches; other texts' answers are further off."""


_log = logging.getLogger(__name__)


class Outcome(enum.IntEnum):
    """What became of a request."""

    RIGHT = 0
    WRONG = 1  # it got an answer, but not its own
    REFUSED = 2  # it got an error
    LOST = 3  # it got nothing


class Answer(NamedTuple):
    """An answer: to which request, when it came (time.perf_counter), and what it was."""

    ticket: int
    at: float
    outcome: Outcome


@dataclass(frozen=True)
class Target:
    """The model and output that requests ask for.

    Attributes:
        protocol: "http" or "grpc" for Triton, "openai" for texts over /v1/embeddings.
        address: host:port.
        model: the model's name.
        output: the name of an output [texts, ...].
        connections: how many each worker opens.
    """

    protocol: str
    address: str
    model: str
    output: str
    connections: int


class Client(Protocol):
    """Connections of one worker. A request is given by its index in the pool of requests, and a ticket."""

    def can_send(self) -> bool:
        """Whether a connection is free."""

    def send(self, ticket: int, request: int) -> None:
        """Sends a request of the pool."""

    def wait(self, seconds: float) -> Sequence[Answer]:
        """The answers that have come; it waits up to `seconds` for the first."""

    def close(self) -> None:
        """Ends the connections."""


def judge(answer: Array, expected: Array | None) -> Outcome:
    """Whether an answer is what its request gets alone; without a reference every answer is right."""
    if expected is None:
        return Outcome.RIGHT
    if answer.shape != expected.shape:
        return Outcome.WRONG
    error = np.abs(answer - expected).max()
    return Outcome.RIGHT if error <= TOLERANCE * np.abs(expected).max() else Outcome.WRONG


def judge_request(answer: Array, references: Sequence[Array] | None, request: int) -> Outcome:
    """Judges the answer to a request of the pool, and logs a warning that says what is wrong with it."""
    outcome = judge(answer, None if references is None else references[request])
    if references is not None and outcome is Outcome.WRONG:
        _log.warning("request %d: %s", request, _what_is_wrong(answer, references, request))
    return outcome


def _what_is_wrong(answer: Array, references: Sequence[Array], request: int) -> str:
    """Which texts of an answer [texts, values] are wrong, by how much, or whose answer it is."""
    others = [at for at, other in enumerate(references) if judge(answer, other) is Outcome.RIGHT]
    if others:
        return f"the answer to request {others[0]}"
    expected = references[request]
    if answer.shape != expected.shape:
        return f"shape {list(answer.shape)}, alone {list(expected.shape)}"
    if not np.isfinite(answer).all():
        return f"{(~np.isfinite(answer)).sum()} of {answer.size} values are not finite"
    errors = np.abs(answer - expected) / np.abs(expected).max()
    texts = np.flatnonzero((errors > TOLERANCE).any(axis=1))
    return (
        f"texts {texts.tolist()} of {len(errors)} are off by up to {errors.max():.3f} of the largest value, "
        f"{(errors > TOLERANCE).sum()} values in all"
    )


def infer_inputs(request: Request, make: Callable[..., Any]) -> list[Any]:
    """The inputs of a request; `make` is InferInput of tritonclient.http or tritonclient.grpc."""
    inputs = []
    for name, array in request.tensors().items():
        item = make(name, list(array.shape), np_to_triton_dtype(array.dtype))
        item.set_data_from_numpy(array)
        inputs.append(item)
    return inputs
