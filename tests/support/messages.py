# SPDX-License-Identifier: Apache-2.0
"""What the rewriter does to models, for messages that have all of their weights inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import ModelProto
from onnx_graphsurgeon import Graph
from padfree.builder.engine import lowering
from padfree.onnx_tools import GraphModel, linear
from padfree.onnx_tools.analysis.special_ids import IdRule, SpecialIds
from padfree.onnx_tools.files.metadata import read_metadata
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.precision import precision as conversion
from padfree.onnx_tools.precision import ranges, rounded_weights, rounding
from padfree.onnx_tools.precision import widen as widened
from padfree.onnx_tools.rewrite import finish
from padfree.onnx_tools.verification import half_precision
from padfree.onnx_tools.verification import verify as verification
from padfree.onnx_tools.verification.sample_batches import Sample


def widen(model: ModelProto) -> ModelProto:
    return widened(Model(model)).proto


def convert(model: ModelProto, precision: str, unfit: Mapping[str, str] | None = None) -> ModelProto:
    return conversion.convert(GraphModel.of(Model(model)).graph, Model(model), precision, unfit).whole()


def with_rounding(model: ModelProto, precision: str) -> ModelProto:
    return rounding.with_rounding(Model(model), precision).proto


def check_weights(original: ModelProto, converted: ModelProto, precision: str) -> None:
    rounded_weights.check_weights(Model(original), Model(converted), precision)


def check_outputs(model: ModelProto, converted: ModelProto, precision: str, sample: Sample) -> None:
    half_precision.check_outputs(Model(model), Model(converted), precision, sample)


def with_linear(model: ModelProto, *, fold_norms: bool = True) -> ModelProto:
    rewritten = linear.with_linear(Model(model), fold_norms=fold_norms)
    return finish(rewritten, read_metadata(model)["precision"])


def for_parser(model: ModelProto, max_seq_len: int) -> ModelProto:
    return lowering.for_parser(Model(model), max_seq_len).whole()


def lower(step: Callable[..., None], model: ModelProto, *arguments: Any) -> None:
    """Takes a message through one step of lowering, in place; padfree nodes keep bodies if they have any."""
    lowered, has_bodies = GraphModel.of(Model(model)), bool(model.functions)
    step(lowered.graph, *arguments)
    result = lowered.export()
    model.CopyFrom(finish(result, lowered.metadata["precision"]) if has_bodies else result.whole())


def leave(_: Graph) -> None:
    """A step that changes nothing: afterwards, a message is spelled as after any other."""


def run(model: ModelProto, feeds: ranges.Feeds, names: Sequence[str]) -> list[ranges.Array]:
    return ranges.run(Model(model), feeds, names)


def verify(
    original: ModelProto, rewritten: ModelProto, metadata: Mapping[str, Any], *, seed: int = 0
) -> dict[str, float]:
    return dict(verification.verify_ids(Model(original), Model(rewritten), metadata, seed=seed).errors)


def verify_ids(
    original: ModelProto, rewritten: ModelProto, metadata: Mapping[str, Any], *, special: Mapping[str, SpecialIds]
) -> tuple[dict[str, float], dict[str, IdRule]]:
    actual = verification.verify_ids(Model(original), Model(rewritten), metadata, special=special)
    return dict(actual.errors), dict(actual.rules)
