# SPDX-License-Identifier: Apache-2.0
"""Whether half precision itself explains a difference: the same file in onnxruntime, with its tensors rounded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from onnx import ModelProto
from padfree.contract.names import FP8, INT8
from padfree.contract.quantization import QuantizationInfo
from padfree.onnx_tools import load_model, save_model
from padfree.onnx_tools.files import Model
from padfree.onnx_tools.precision import widen, with_rounding
from padfree.runtime import Array
from polygraphy.logger import G_LOGGER

from ..original import Original
from ..outcomes import Outcome, errors_of, is_compared
from ..runners import SessionRunner
from ..subject import Subject

ROUNDING_FACTOR = 3.0  # times what rounding gives on a CPU: sums inside kernels have another order and length
BETTER = {"fp16": "fp32", "bf16": "fp16 or fp32", FP8: "fp16", INT8: "fp16"}
LAYERS_SHOWN = 3


def find_roundoff(original: Original, subject: Subject, outcome: Outcome) -> tuple[str, ...]:
    """What rounding alone does to a rewritten half precision file, on the batch where it differs most.

    For files that are known to hold what the rewriter writes; empty for models that round nothing.

    Args:
        original: the reference.
        subject: what differs.
        outcome: how.
    """
    item, precision = subject.rewritten, subject.precision
    if item is None or item.metadata is None or precision not in BETTER:
        return ()
    at = _worst_batch(outcome)
    batch = outcome.batches[at]
    model = Model(load_model(item.path))
    with tempfile.TemporaryDirectory(prefix="padfree-compare-") as folder:

        def measure(changed: ModelProto) -> float:
            path = Path(folder) / "model.onnx"
            save_model(changed, path)
            with G_LOGGER.verbosity(G_LOGGER.CRITICAL), SessionRunner(original, "rounding", lambda: path) as runner:
                return _largest_error(original, outcome, at, runner.infer(dict(batch.feeds)))

        rounded = measure(with_rounding(model, item.metadata.precision).proto)
        plain = measure(widen(model).proto)
    error = _largest_error(original, outcome, at, {name: rows[at] for name, rows in outcome.actual.items()})
    if item.metadata.quantization is None:
        facts = f"with every tensor rounded to {precision}, and {plain:.2g} with its weights alone"
    else:
        facts = f"of which its GEMMs in {precision} alone make {plain:.2g}, {_most_lossy(item.metadata.quantization)}"
    facts = f"in onnxruntime the same file is {rounded:.2g} relative off {facts}"
    if error > ROUNDING_FACTOR * rounded:
        verdict = f"{precision} does not explain it: {facts}; what runs here is {error:.2g} off; please report it"
    else:
        verdict = (
            f"{precision} loses too many digits in this model: {facts}; choose precision {BETTER[precision]}, or "
            "accept it with --relative-tolerance and --absolute-tolerance where the task's scores do not change"
        )
    return (verdict,)


def _most_lossy(quantization: QuantizationInfo) -> str:
    """Which GEMMs lost most on the calibration data, and what to do about it."""
    losses = {layer.name: layer.loss for layer in quantization.layers if layer.loss is not None}
    if not losses:
        return "which GEMMs lose most is measured with --calibrate, and --keep leaves them in half precision"
    layers = sorted(losses, key=losses.__getitem__, reverse=True)[:LAYERS_SHOWN]
    layers_text = ", ".join(f"'{name}' ({losses[name]:.3f} of its result)" for name in layers)
    return f"most of all {layers_text}, which --keep leaves in half precision"


def _worst_batch(outcome: Outcome) -> int:
    worst = max((row for item in outcome.errors for row in item.worst), key=lambda row: row.relative)
    return [batch.name for batch in outcome.batches].index(worst.batch)


def _largest_error(original: Original, outcome: Outcome, at: int, actual: Mapping[str, Array]) -> float:
    """The largest relative error of outputs on the batch of this number."""
    batch = outcome.batches[at]
    return max(
        errors_of(
            original,
            item.output,
            [batch],
            [outcome.expected[item.output][at]],
            [actual[item.output]],
            outcome.scales[item.output],
        ).total.relative
        for item in outcome.errors
        if is_compared(original, item.output, batch)
    )
