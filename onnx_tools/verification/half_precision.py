# SPDX-License-Identifier: Apache-2.0
"""fp16 without surprises: what it cannot hold is found with sample data and stays float32, or the whole model is bf16.

The result is then run and checked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, ValueInfoProto
from padfree.contract.names import HALF

from ..analysis import Dims, token_numbers
from ..errors import VerificationError
from ..files import Array, Model
from ..operators import DOMAIN, with_functions
from ..precision import convert, with_rounding
from ..precision.ranges import LARGEST, find_unfit, run
from .agreement import largest_column_error, measure, typical_row_error
from .sample_batches import Sample

logger = logging.getLogger(__name__)

# Root mean square of a column's errors relative to the column's own (see agreement.py): fp16 leaves about 1e-3 after 12
# layers, bf16 eight times that; a lost tensor causes errors of 0.1 or more.
LARGEST_ERRORS: Mapping[str, float] = MappingProxyType({"fp16": 3e-2, "bf16": 2e-1})


@dataclass(frozen=True)
class HalfPrecision:
    """A model in fp16 or bf16, the tensors that stay float32, and why it is not fp16 where the choice was left open.

    `errors` holds what rounding costs the worst column of each output, `typical` what it costs a usual row
    (agreement.py); both are empty where nothing was run.
    """

    model: Model
    precision: str
    kept_float32: Mapping[str, str]
    against_fp16: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    typical: Mapping[str, float] = field(default_factory=dict)


def convert_and_check(graph: gs.Graph, model: Model, precision: str, sample: Sample | None) -> HalfPrecision:
    """A rewritten float32 model in half precision.

    Args:
        graph: the model's; it becomes that of the result.
        model: without function bodies.
        precision: "fp16", "bf16", or "half": fp16, unless GEMMs of tokens would then have to stay float32, whose
            kernels are several times slower.
        sample: inputs; None skips all that needs them, so that only weights are examined.

    Raises:
        RewriteError: something does not fit and cannot stay float32.
        VerificationError: the result differs from the model's, with every tensor rounded as on a GPU.
    """
    if sample is None:
        precision = "fp16" if precision == HALF else precision
        return HalfPrecision(convert(graph, model, precision), precision, {})
    unfit: Mapping[str, str] = {}
    results: Mapping[str, Array] = {}
    against_fp16 = ""
    if precision != "bf16":
        in_fp32 = find_unfit(model, sample.feeds, "fp16")
        unfit, results = in_fp32.unfit, in_fp32.results
        against_fp16 = _reason_against_fp16(model.proto, unfit) if precision == HALF else ""
        precision, unfit = ("bf16", {}) if against_fp16 else ("fp16", unfit)
    for name, reason in unfit.items():
        logger.info("'%s' stays float32: it %s", name, reason)
    converted = convert(graph, model, precision, unfit)
    costs = check_outputs(model, converted, precision, sample, results)
    worst, typical = ({name: cost[at] for name, cost in costs.items()} for at in (0, 1))
    return HalfPrecision(converted, precision, unfit, against_fp16, worst, typical)


def _reason_against_fp16(model: ModelProto, unfit: Mapping[str, str]) -> str:
    """Why the first tensor does not fit that a GEMM of tokens or a padfree operator makes or reads; "" if all fit."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.domain == DOMAIN or (node.op_type == "MatMul" and node.input[1] in weights):
            for name in (*node.input, *node.output):
                if name in unfit:
                    return f"'{name}' {unfit[name]}"
    return ""


def check_outputs(
    model: Model, converted: Model, precision: str, sample: Sample, results: Mapping[str, Array] = MappingProxyType({})
) -> dict[str, tuple[float, float]]:
    """Runs both models on sample inputs; the largest column error and the typical row error of each float output.

    `results`: what `model` gave for these inputs. It runs only if an output is missing there.

    Raises VerificationError naming an output that is not finite or too far off.
    """
    errors: dict[str, tuple[float, float]] = {}
    outputs = {item.name: _dims(item) for item in model.proto.graph.output}
    if outputs.keys() <= results.keys():
        expected = [results[name] for name in outputs]
    else:
        expected = run(model.with_proto(with_functions(model.proto)), sample.feeds, [*outputs])
    actual = run(with_rounding(converted, precision), sample.feeds, [*outputs])
    for (name, dims), a, b in zip(outputs.items(), expected, actual, strict=True):
        if a.dtype.kind != "f":
            continue
        rows = [token_numbers(item, dims, sample.mask).values for item in (a, b)]
        error = largest_column_error(*rows, largest=LARGEST[precision])
        errors[name] = error, typical_row_error(rows[0], rows[1], measure(rows[:1]), largest=LARGEST[precision])
        if not error <= LARGEST_ERRORS[precision]:
            lost_count = int((np.isfinite(rows[0]) & ~np.isfinite(rows[1])).sum())
            what = (
                f"{lost_count} numbers that are not finite"
                if lost_count
                else f"a column with a relative error of {error:.2g}"
            )
            others = "bf16 or fp32" if precision == "fp16" else "fp32"
            raise VerificationError(
                f"in precision {precision}, output '{name}' has {what} (allowed: none, and "
                f"{LARGEST_ERRORS[precision]:g}), with every tensor rounded as on a GPU; choose precision {others}"
            )
    return errors


def _dims(value: ValueInfoProto) -> Dims | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim)
