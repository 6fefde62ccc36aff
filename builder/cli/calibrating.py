# SPDX-License-Identifier: Apache-2.0
"""fp8 and int8 on the command line: options, the calibration's progress, and what became of the GEMMs."""

from __future__ import annotations

import argparse
import itertools
from typing import TYPE_CHECKING

from padfree.builder.errors import BuildError
from padfree.contract.names import EIGHT_BITS, FP8, INT8

from .console import number_text, print_line, print_table
from .option_kinds import file, number, word
from .options import add_tokenizer_option

if TYPE_CHECKING:
    from padfree.builder.calibration import Calibration
    from padfree.builder.engine.progress import StageProgress
    from padfree.contract.quantization import QuantizationInfo
    from padfree.onnx_tools.quantization import BeginSteps, Step

LAYERS_SHOWN = 24


def add_calibration_options(parser: argparse.ArgumentParser) -> None:
    """--calibrate, --tokenizer, --keep-scales, --margin, --keep, --quantize, --largest-loss, --least-cosine."""
    group = parser.add_argument_group("GEMMs in 8 bits (--precision fp8, --precision int8)")
    file(
        group,
        "--calibrate",
        "FILE",
        "data like the model's later inputs: texts (.txt, .jsonl) or token ids (.jsonl, .npz)",
    )
    add_tokenizer_option(group)
    group.add_argument(
        "--keep-scales",
        action="store_true",
        default=None,
        help="int8 with the scales and weights of a file that has QuantizeLinear nodes; --calibrate is optional then",
    )
    number(group, "--margin", "X", "room above the largest number of the data, 1 to 64 (default 2, of int8 1.25)")
    word(group, "--keep", "NAMES", "GEMMs that stay in half precision, by name or pattern (*)", action="append")
    word(group, "--quantize", "NAMES", "the only GEMMs in 8 bits, by name or pattern (*)", action="append")
    number(group, "--largest-loss", "X", "GEMMs whose relative error is larger stay in half precision (default 0.1)")
    number(
        group,
        "--least-cosine",
        "X",
        "keep GEMMs in half precision, worst first, until outputs have this cosine to half precision (try 0.995)",
    )


def calibration_of(arguments: argparse.Namespace) -> Calibration | None:
    """What add_calibration_options' options say; None where neither fp8 nor int8 was asked for.

    Raises:
        BuildError: one of them without data, or their options without it; RewriteError: a number out of range.
    """
    names = ("calibrate", "tokenizer", "keep_scales", "margin", "keep", "quantize", "largest_loss", "least_cosine")
    used_options = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) is not None]
    if arguments.precision not in EIGHT_BITS:
        if used_options:
            raise BuildError(
                f"{used_options[0]} is for --precision {' or '.join(EIGHT_BITS)}; pass one of them too, or leave "
                f"{used_options[0]} out"
            )
        return None
    from padfree.builder.calibration import Calibration, require_calibration
    from padfree.onnx_tools.quantization import FORMATS, LARGEST_LOSS, QuantizationOptions

    options = QuantizationOptions(
        margin=arguments.margin,
        keep=tuple(arguments.keep or ()),
        quantize=tuple(arguments.quantize or ()),
        largest_loss=LARGEST_LOSS if arguments.largest_loss is None else arguments.largest_loss,
        least_cosine=arguments.least_cosine,
        number_format=FORMATS[arguments.precision],
    )
    file, keeps_scales = arguments.calibrate, bool(arguments.keep_scales)
    if keeps_scales:
        _check_kept(arguments)
    else:
        file = require_calibration(file, arguments.precision)
    return Calibration(file, arguments.tokenizer, options, keeps_scales)


def _check_kept(arguments: argparse.Namespace) -> None:
    """Raises BuildError for what does not go with --keep-scales."""
    if arguments.precision != INT8:
        raise BuildError(
            f"--keep-scales is for --precision {INT8}; pass that too, or leave --keep-scales out and pass --calibrate"
        )
    if arguments.margin is not None:
        raise BuildError("--margin makes scales of the data, and --keep-scales takes the file's; leave one out")
    for name in ("largest_loss", "least_cosine"):
        if arguments.calibrate is None and getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise BuildError(f"{option} needs --calibrate FILE, with whose data losses are measured; pass it too")


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
