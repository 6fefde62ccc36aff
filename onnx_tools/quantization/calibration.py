# SPDX-License-Identifier: Apache-2.0
"""The largest numbers that tensors of a rewritten model hold on given data, in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from ..errors import RewriteError
from ..files import Model, open_session, replace_items, results_of
from ..operators import with_functions
from ..precision import with_rounding

Feeds = Mapping[str, npt.NDArray[Any]]
Step = Callable[[], object]
"""Called after each step of work that shows its progress."""
BeginSteps = Callable[[int], Step]
"""Called with the number of steps; returns the function to be called after each of them."""


def largest_numbers(
    model: Model,
    precision: str,
    tensors: Sequence[str],
    batches: Iterable[Feeds],
    done: Step,
    *,
    by_column: bool = False,
) -> dict[str, npt.NDArray[np.float32]]:
    """The largest absolute value of each tensor over all batches: a scalar, or one of each column [K].

    Args:
        model: rewritten, without function bodies.
        precision: its activations' type.
        tensors: floating point tensors that its nodes make.
        batches: inputs of the model; one or more.
        done: called after each batch.
        by_column: of tensors [T,K].

    Raises:
        RewriteError: a tensor is not finite on a batch; the message names both.
    """
    runs = _runnable(model, precision)
    outputs_marked = runs.proto
    names = [_with_largest(outputs_marked, tensor, index, by_column) for index, tensor in enumerate(tensors)]
    replace_items(outputs_marked.graph.output, (ValueInfoProto(name=name) for name in names))
    session = open_session(runs)
    largest = [np.zeros((), np.float32) for _ in tensors]
    for number, feeds in enumerate(batches, 1):
        values = [np.asarray(value, np.float32) for value in session.run(names, dict(feeds))]
        strange = [tensor for tensor, value in zip(tensors, values, strict=True) if not np.isfinite(value).all()]
        if strange:
            raise RewriteError(
                f"'{strange[0]}' is not finite on calibration batch {number}: the model's numbers overflow "
                f"{precision} there; choose another precision, or leave out the texts that do it"
            )
        largest = [np.maximum(before, value) for before, value in zip(largest, values, strict=True)]
        done()
    return dict(zip(tensors, largest, strict=True))


def _runnable(model: Model, precision: str) -> Model:
    """A copy with bodies, for onnxruntime on a CPU, which lacks most bf16 kernels: it rounds to bf16 in fp32."""
    if precision == "bf16":
        return with_rounding(model, precision)
    return model.with_proto(with_functions(model.proto, precision))


def _with_largest(model: ModelProto, tensor: str, index: int, by_column: bool) -> str:
    """Adds the largest absolute value of a tensor, in place; returns its name. It is NaN where a number is not finite.

    onnxruntime's ReduceMax skips NaN; a product with zeros does not.
    """
    stem = f"padfree_largest_{index}"
    wide, size, largest, zero, nothing, result = (
        f"{stem}_{part}" for part in ("wide", "size", "raw", "zero", "nothing", "result")
    )
    model.graph.initializer.append(helper.make_tensor(zero, TensorProto.FLOAT, [], [0.0]))
    axes = [f"{stem}_axes"] if by_column else []
    model.graph.initializer.extend(helper.make_tensor(name, TensorProto.INT64, [1], [0]) for name in axes)
    model.graph.node.extend(
        [
            helper.make_node("Cast", [tensor], [wide], to=TensorProto.FLOAT),
            helper.make_node("Abs", [wide], [size]),
            helper.make_node("ReduceMax", [size, *axes], [largest], keepdims=0),
            helper.make_node("Mul", [wide, zero], [f"{stem}_zeros"]),
            helper.make_node("ReduceSum", [f"{stem}_zeros", *axes], [nothing], keepdims=0),
            helper.make_node("Add", [largest, nothing], [result]),
        ]
    )
    return result


def fetch(model: Model, precision: str, tensors: Sequence[str], feeds: Feeds) -> list[npt.NDArray[Any]]:
    """Tensors of a rewritten model, or its outputs, on one batch, as float32."""
    values = dict(fetch_each(model, precision, tensors, feeds, at_once=len(tensors)))
    return [values[name] for name in tensors]


def fetch_each(
    model: Model, precision: str, tensors: Sequence[str], feeds: Feeds, *, at_once: int
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Like fetch, but gives name and values of each tensor as they come.

    A large model runs once, part by part; others run once for every `at_once` tensors.
    """
    runs = _runnable(model, precision)
    there = {value.name for value in runs.proto.graph.output}
    runs.proto.graph.output.extend(ValueInfoProto(name=name) for name in tensors if name not in there)
    for name, value in results_of(open_session(runs), tensors, feeds, at_once=at_once):
        yield name, np.asarray(value, np.float32)
