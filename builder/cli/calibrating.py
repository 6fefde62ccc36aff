# SPDX-License-Identifier: Apache-2.0
"""What the command line shows of fp8 and int8: the calibration's progress, and what became of the GEMMs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from padfree.contract.names import FP8

from .console import number_text, print_line, print_table

if TYPE_CHECKING:
    from padfree.builder.engine.progress import StageProgress
    from padfree.contract.quantization import QuantizationInfo
    from padfree.onnx_tools.quantization import BeginSteps, Step

LAYERS_SHOWN = 24


def steps_of(progress: StageProgress) -> BeginSteps:
    """A function that begins the stage of a calibration of so many batches, and returns one to call after each."""

    def begin(batches: int) -> Step:
        progress.begin("calibrating")
        done = itertools.count(1)
        progress.report(0, batches)
        return lambda: progress.report(next(done), batches)

    return begin


def print_quantization(quantization: QuantizationInfo | None) -> None:
    """Prints which GEMMs are in 8 bits, those that lose most first, which are not and why; nothing without any."""
    if quantization is None:
        return
    layers = sorted(quantization.layers, key=lambda layer: layer.loss_per_token or layer.loss or 0.0, reverse=True)
    headings = ["GEMM", "largest input", "scale", "loss", "per token"]
    rows = [[layer.name, number_text(layer.largest, ".4g"), f"{layer.scale:g}"] for layer in layers[:LAYERS_SHOWN]]
    for layer, row in zip(layers, rows, strict=False):
        row += [number_text(layer.loss, ".4f"), number_text(layer.loss_per_token, ".4f")]
    if any(layer.smoothing is not None for layer in layers):
        headings.append("smoothing")
        for layer, row in zip(layers, rows, strict=False):
            row.append(number_text(layer.smoothing, ".2f"))
    print_table(f"GEMMs in {quantization.type}", headings, rows)
    if len(layers) > LAYERS_SHOWN:
        print_line(f"and {len(layers) - LAYERS_SHOWN} more that lose less (`quantization` in the metadata)")
    if quantization.kept_gemms:
        print_table("GEMMs in half precision", ("GEMM", "reason"), list(quantization.kept_gemms.items()))
    if quantization.share is not None:
        print_line(f"{quantization.share:.0%} of the GEMMs' multiplications are in {quantization.type}")
    for name, cosine in quantization.cosines.items():
        print_line(f"'{name}': cosine {cosine:.5f} to half precision, mean over calibration sequences")
    if quantization.margin is None:
        print_line("scales are those of the file that was quantised before")
        return
    up_to = f" to {2 * quantization.margin:g}" if quantization.precision == FP8 else ""  # its scales are powers of two
    print_line(f"scales from {quantization.tokens} tokens, with room for {quantization.margin:g}{up_to} times")
