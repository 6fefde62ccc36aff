# SPDX-License-Identifier: Apache-2.0
"""The answers that an engine is compared with: the rewritten model's in onnxruntime, computed while TensorRT builds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime as ort
from onnx import ModelProto
from padfree.contract.metadata import Metadata, Profile
from padfree.onnx_tools.files import Array, Model, open_session
from padfree.onnx_tools.operators import with_functions, without_functions
from padfree.onnx_tools.precision import widen, with_rounding

from ..errors import BuildError
from .batches import CheckedBatch, make_batches

MOST_MULTIPLICATIONS = 1 << 37
"""Weights times tokens of a batch: BERT-base's 85 million by 1600, which take 16 cores a third of a second."""
MOST_LONG = 4
"""Times that in the batch with a long sequence."""
MOST_NUMBERS = 1 << 24
"""In an output of a batch: a vocabulary of 150,000 leaves 110 tokens."""
LEAST_TOKENS = 16
TABLES = ("Gather", "PadfreeEmbedding", "PadfreeTokenRows")
"""Operators that read rows of their weights, and multiply by none."""


@dataclass(frozen=True)
class Reference:
    """Batches, and the answers to them.

    answers: of each batch, output name -> array as the model gives it.
    made_by: what computed them, in words. seconds: how long that took.
    """

    batches: tuple[CheckedBatch, ...]
    answers: tuple[dict[str, Array], ...]
    made_by: str
    seconds: float


def compute_reference(
    exact: Model, metadata: Metadata, profile: Profile, *, wait: Callable[[], object] = lambda: None
) -> Reference:
    """Runs the batches of a check in onnxruntime.

    Args:
        exact: a rewritten model before its types were converted, or a rewritten file of any precision, which then
            computes in float32; one in fp8 multiplies its e4m3 numbers, and rounds as it does on a GPU.
        metadata: of the rewritten model that the engine is built from.
        profile: what the engine takes in one run.
        wait: called once onnxruntime has the graph, before the runs, which take memory.

    Raises:
        BuildError: onnxruntime does not run it; the message says what to do.
    """
    start = time.monotonic()
    most, long = (_most_tokens(exact, metadata, times) for times in (1, MOST_LONG))
    batches = make_batches(metadata, profile, most_tokens=most, most_long=long)
    try:
        session = open_session(_runnable(exact, metadata))
        before_wait = time.monotonic()
        wait()
        start += time.monotonic() - before_wait
        names = [item.name for item in metadata.outputs]
        answers = tuple(dict(zip(names, _run(session, names, batch, metadata), strict=True)) for batch in batches)
    except BuildError:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise BuildError(
            f"the rewritten model does not load in onnxruntime {ort.__version__}, whose answers the engine is checked "
            f"with: {error}; --no-verify builds without a check"
        ) from error
    exact.weights.check_files()
    file = "the file in e4m3" if metadata.quantization is not None else "the rewritten model in float32"
    return Reference(batches, answers, f"{file}, onnxruntime {ort.__version__}", round(time.monotonic() - start, 2))


def _run(session: Any, names: Sequence[str], batch: CheckedBatch, metadata: Metadata) -> list[Array]:
    try:
        return list(session.run(list(names), batch.inputs(metadata)))
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise BuildError(
            f"the rewritten model fails in onnxruntime {ort.__version__} on the batch '{batch.name}' (lengths "
            f"{batch.seq_lens.tolist()}), whose answers the engine is checked with: {error}; check the model with "
            "padfree compare, or build without a check: --no-verify"
        ) from error


def _runnable(exact: Model, metadata: Metadata) -> Model:
    """The model with bodies for its operators, and in float32, but for what e4m3 rounds."""
    if metadata.quantization is not None:
        return with_rounding(exact, metadata.precision)
    exact.weights.align()
    wide = widen(exact.with_proto(without_functions(exact.proto)))
    return wide.with_proto(with_functions(wide.proto))


def _most_tokens(model: Model, metadata: Metadata, times: int = 1) -> int:
    """Tokens of a batch whose answers a CPU computes in about a second, or in a few `times` as much."""
    widths = [math.prod(size for size in item.shape or () if size is not None) for item in metadata.outputs]
    by_weights = times * MOST_MULTIPLICATIONS // max(1, multiplied_weights(model.proto))
    return max(LEAST_TOKENS, min(by_weights, MOST_NUMBERS // max(1, *widths)))


def multiplied_weights(model: ModelProto) -> int:
    """How many numbers of its weights a model multiplies each token by."""
    tables = {name for node in model.graph.node if node.op_type in TABLES for name in node.input}
    tables -= {name for node in model.graph.node if node.op_type not in TABLES for name in node.input}
    return sum(
        math.prod(tensor.dims)
        for tensor in model.graph.initializer
        if len(tensor.dims) > 1 and tensor.name not in tables
    )
