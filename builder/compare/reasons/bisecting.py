# SPDX-License-Identifier: Apache-2.0
"""Finds the first tensor of a rewritten model that differs from the original's, its node, and what went wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from onnx import GraphProto
from padfree.onnx_tools.analysis import BATCH, SLOTS
from padfree.runtime import Array, Metadata

from ..batches import ComparedBatch
from ..insides import Inside
from ..metrics import Errors, output_errors
from ..original import Original
from ..outcomes import scale_of
from ..tolerances import Tolerance
from .intermediate import SideBySide, Values

JUMP = 4.0  # times the largest mean error before: more than that is no loss of digits that adds up


@dataclass(frozen=True)
class Range:
    """The numbers of a tensor: smallest and largest, smallest magnitude but zero, and how many are not finite."""

    low: float
    high: float
    smallest: float
    not_finite: int


@dataclass(frozen=True)
class TensorError:
    """One tensor against the original's; `operator` makes it."""

    tensor: str
    origin: str
    operator: str
    node: str
    errors: Errors
    wanted: Range
    found: Range

    def within(self, tolerance: Tolerance) -> bool:
        """Whether it agrees."""
        return self.errors.within(tolerance) and self.found.not_finite <= self.wanted.not_finite


@dataclass(frozen=True)
class Departure:
    """Where a model leaves the original.

    first: the first tensor over the tolerance; None where all agree.
    kind: "overflow", "vanished", "wrong mask", "lost precision", "wrong numbers", or "none".
    since: the nodes from the tensors that agree to `first`, whose own node comes last.
    trace: every compared tensor in the model's order.
    """

    batch: str
    first: TensorError | None
    kind: str
    since: tuple[str, ...]
    verdict: str
    trace: tuple[TensorError, ...]


def find_departure(
    original: Original,
    inside: Inside,
    metadata: Metadata,
    batch: ComparedBatch,
    tolerance: Tolerance,
    *,
    outcome_passed: bool,
) -> Departure:
    """Compares all intermediate tensors on one batch.

    Args:
        original: the reference.
        inside: the rewritten model, which gives its intermediate tensors.
        metadata: the rewritten model's.
        batch: one on which outputs differ tells most.
        tolerance: for every tensor; as for outputs.
        outcome_passed: the outputs agree. Then no tensor is blamed: some are more sensitive than the outputs.

    Raises:
        BuildError: the two models have no tensor in common.
    """
    models = SideBySide(original, inside, metadata)
    trace = tuple(_tensor_error(values, batch) for values in models.run(batch))
    worst = max(trace, key=lambda item: item.errors.relative)
    first = None if outcome_passed else next((item for item in trace if not item.within(tolerance)), None)
    if first is None:
        verdict = (
            f"{'outputs agree' if outcome_passed else 'no tensor inside is over the tolerance'}; the largest relative "
            f"error of {len(trace)} tensors is {worst.errors.relative:.2g}, at '{worst.tensor}' of {worst.operator} "
            f"'{worst.node}'{_largest_step(trace) if metadata.quantization else ''}"
        )
        return Departure(batch.name, None, "none", (), verdict, trace)
    equal_tensors = {item.tensor for item in trace[: trace.index(first)]}
    since = _nodes_since(models.graph, first.tensor, equal_tensors)
    kind = _kind(models, batch, first, trace, tolerance, metadata.arithmetic)
    return Departure(batch.name, first, kind, since, _verdict(first, kind, since, metadata.arithmetic), trace)


def _largest_step(trace: Sequence[TensorError]) -> str:
    """Where in the model's order the mean error grows most: in fp8 every GEMM adds some."""
    steps = [(after.errors.mean_relative - before.errors.mean_relative, after) for before, after in pairwise(trace)]
    if not steps:
        return ""
    growth, item = max(steps, key=lambda step: step[0])
    return f"; on average it grows most, by {growth:.2g}, at '{item.tensor}' of {item.operator} '{item.node}'"


def _tensor_error(values: Values, batch: ComparedBatch) -> TensorError:
    name, node = values.pair.tensor, values.pair.node
    dims = (BATCH, SLOTS) if len(values.expected) == batch.mask.sum() else (BATCH,)
    errors = output_errors(name, [batch], [values.expected], [values.actual], scale_of([values.expected]), dims).total
    operator = str(node.op_type)
    return TensorError(
        name,
        values.pair.origin,
        operator,
        str(node.name or name),
        errors,
        _range(values.expected),
        _range(values.actual),
    )


def _range(array: Array) -> Range:
    finite = array[np.isfinite(array)]
    magnitudes = np.abs(finite[finite != 0])
    return Range(
        float(finite.min(initial=np.inf)) if finite.size else 0.0,
        float(finite.max(initial=-np.inf)) if finite.size else 0.0,
        float(magnitudes.min()) if magnitudes.size else 0.0,
        int(array.size - finite.size),
    )


def _nodes_since(graph: GraphProto, tensor: str, equal_tensors: set[str]) -> tuple[str, ...]:
    """The nodes that lead to a tensor from those that agree, in the model's order."""
    makers = {name: node for node in graph.node for name in node.output if name}
    pending, seen = [tensor], set[str]()
    while pending:
        node = makers.get(pending.pop())
        if node is None or node.output[0] in seen:
            continue
        seen.add(node.output[0])
        pending += [name for name in node.input if name not in equal_tensors]
    return tuple(f"{node.op_type} '{node.name or node.output[0]}'" for node in graph.node if node.output[0] in seen)


def _kind(
    models: SideBySide,
    batch: ComparedBatch,
    first: TensorError,
    trace: tuple[TensorError, ...],
    tolerance: Tolerance,
    precision: str,
) -> str:
    if first.found.not_finite > first.wanted.not_finite:
        return "overflow"
    if first.wanted.smallest and not first.found.smallest:
        return "vanished"
    before = [item.errors.mean_relative for item in trace[: trace.index(first)]]
    if precision != "fp32" and first.errors.mean_relative < JUMP * max(before, default=0.0):
        return "lost precision"
    alone = batch.part(int(batch.seq_lens.argmax()), models.original)
    if len(batch.mask) > 1 or not batch.mask.all():
        pair_values = next(v for v in models.run(alone) if v.pair.tensor == first.tensor)
        error = _tensor_error(pair_values, alone)
        if error.within(tolerance) and JUMP * error.errors.mean_relative < first.errors.mean_relative:
            return "wrong mask"
    return "wrong numbers"


def _verdict(first: TensorError, kind: str, since: tuple[str, ...], precision: str) -> str:
    reasons = {
        "overflow": f"numbers overflow {precision}",
        "vanished": f"numbers vanish in {precision}",
        "wrong mask": "the mask or the sequences' lengths are wrong: a sequence alone agrees",
        "lost precision": f"{precision} loses too many digits",
        "wrong numbers": "its numbers are wrong for a sequence alone, too",
    }
    between = f"; between it and tensors that agree: {', '.join(since[:-1])}" if len(since) > 1 else ""
    return (
        f"the first tensor that differs is '{first.tensor}' of {first.operator} '{first.node}' (in the original "
        f"'{first.origin}'): {reasons[kind]}. The original has {_range_text(first.wanted)}, this model "
        f"{_range_text(first.found)}; errors {first.errors.absolute:.2g} absolute, {first.errors.relative:.2g} relative"
        f"{between}"
    )


def _range_text(values: Range) -> str:
    extra = f" and {values.not_finite} that are not finite" if values.not_finite else ""
    return f"numbers in [{values.low:.4g}, {values.high:.4g}]{extra}"
