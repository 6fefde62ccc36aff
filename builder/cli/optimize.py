# SPDX-License-Identifier: Apache-2.0
"""`padfree optimize`: rewrites an exported model so that it computes no padding."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.builder.errors import BuildError
from padfree.contract.machine import trim_heap
from padfree.contract.names import ONNX_SUFFIX, WHOLE, is_onnx
from padfree.contract.phases import WRITING, Phases

from .calibrating import add_calibration_options, calibration_of, print_quantization, steps_of
from .console import print_phases
from .coverage import print_coverage, print_kept_float32, print_outputs
from .opening import opened_model
from .option_kinds import file
from .options import (
    LINEAR,
    add_head_options,
    add_length_options,
    add_norms_option,
    add_output_option,
    add_rewrite_options,
)
from .stages import add_quiet_option, sayer, stages
from .summary import (
    Line,
    add_verbose_option,
    next_command,
    print_summary,
    repeated_options,
    rewriting_lines,
    run_command,
    wrote,
)

if TYPE_CHECKING:
    from padfree.builder.calibration import Calibration
    from padfree.builder.engine.progress import StageProgress
    from padfree.builder.folders.source import Source
    from padfree.onnx_tools.files import Model

PLAN_SUFFIXES = (".plan", ".engine", ".trt")


HELP = "rewrite a model: its folder, Hugging Face id or .onnx file"
DESCRIPTION = (
    "Rewrites an encoder so that it computes no padding. Needs no GPU; the result "
    "runs in onnxruntime (padfree run) and builds into an engine (padfree build)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "model",
        type=Path,
        help="exported model, such as model.onnx; a model's folder, laid out as on Hugging Face; or its id there",
    )
    add_output_option(parser, "packed.onnx")
    add_rewrite_options(parser, precision="fp32", interface="packed")
    add_head_options(parser)
    parser.add_argument(
        "--linear",
        choices=LINEAR[1:],
        default="tensorrt",
        help="padfree: write PadfreeLinear into the model, which then builds only into engines for Hopper in fp16 or "
        "bf16; default tensorrt: plain GEMMs, and `padfree build --linear` chooses",
    )
    add_norms_option(parser)
    add_calibration_options(parser)
    file(parser, "--report", "FILE", "also write the coverage report as JSON")
    add_length_options(parser)
    add_quiet_option(parser)
    add_verbose_option(parser, "outputs, tensors that stay float32, every pass with its near misses, and the roofline")


def _check_suffixes(output: Path, report: Path | None) -> None:
    """Files are what their names say."""
    if not is_onnx(output):
        named_plan = output.suffix in PLAN_SUFFIXES
        name = output.with_suffix(ONNX_SUFFIX).name if named_plan else f"{output.name}{ONNX_SUFFIX}"
        raise BuildError(
            f"-o {output}: optimize writes an {ONNX_SUFFIX} file, which is known by its name later; name it {name}"
            + (", or make a plan with padfree build" if named_plan else "")
        )
    if report is not None and report.suffix.lower() in (".html", ".htm"):
        raise BuildError(
            f"--report {report}: the coverage report is JSON; name it {report.with_suffix('.json').name}, or have "
            "padfree compare write a page (--html FILE)"
        )


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.coverage import report
    from padfree.builder.destinations import check_destinations
    from padfree.builder.engine.preparation import metadata_of
    from padfree.builder.files import json_bytes, write_files
    from padfree.builder.folders.companions import kept_files, tokenizer_destination
    from padfree.builder.lengths import check_lengths, choose_lengths
    from padfree.onnx_tools import save_model
    from padfree.runtime import parse_metadata

    outputs = [("-o", arguments.output), ("the tokenizer", tokenizer_destination(arguments.output))]
    check_destinations([*outputs, ("--report", arguments.report)], [("the model", arguments.model)])
    _check_suffixes(arguments.output, arguments.report)
    lengths_options = (arguments.batch, arguments.mean_length, arguments.max_length)
    check_lengths(*lengths_options)
    calibration = calibration_of(arguments)
    with (
        opened_model(
            arguments.model,
            arguments,
            sayer(arguments),
            lazily=True,
            with_second_opinion=arguments.verify == WHOLE,
        ) as source,
        stages(arguments) as progress,
    ):
        phases = Phases(progress)
        model = _optimize(arguments, source, calibration, progress, phases)
        metadata = metadata_of(model.proto)
        cut = (metadata.get("text") or {}).get("max_length")
        lengths = choose_lengths(metadata["max_positions"], *lengths_options, cut=cut)
        coverage = report(metadata["coverage"], lengths, arguments.gpu)
        more_files = kept_files(source.path, arguments.output, parse_metadata(metadata, str(source.path)))
        with phases.measure(WRITING):
            trim_heap()  # a table that is read to be written may take hundreds of MB
            save_model(model, arguments.output)
            write_files(more_files)
    if arguments.report is not None:
        write_files([(arguments.report, json_bytes(coverage))])
    if arguments.verbose:
        print_phases(phases.seconds)
        print_outputs(metadata["outputs"])
        print_kept_float32(metadata)
        print_quantization(parse_metadata(metadata, str(arguments.output)).quantization)
        print_coverage(coverage)
    print_summary(_summary(arguments, metadata, coverage, [path for path, _ in more_files]))
    return 0


def _summary(
    arguments: argparse.Namespace, metadata: Mapping[str, Any], coverage: Mapping[str, Any], more_files: Sequence[Path]
) -> list[Line]:
    """The result in a few lines. Without a tokenizer, the next thing to do is to compare the two files."""
    output = arguments.output
    reports = [] if arguments.report is None else [arguments.report]
    compare = next_command("padfree", "compare", str(arguments.model), str(output), *repeated_options(arguments))
    return [
        *rewriting_lines(metadata, coverage),
        wrote([output, *more_files, *reports], f": {arguments.interface} interface, {metadata['precision']}"),
        run_command(output, metadata) or compare,
    ]


def _optimize(
    arguments: argparse.Namespace,
    source: Source,
    calibration: Calibration | None,
    progress: StageProgress,
    phases: Phases,
) -> Model:
    """The model as the file will hold it."""
    from padfree.builder.calibration import quantized_model
    from padfree.builder.engine.linear import apply_linear
    from padfree.builder.engine.preparation import metadata_of
    from padfree.onnx_tools import RewriteOptions, rewrite_model, with_bodies
    from padfree.onnx_tools.files import Storage
    from padfree.onnx_tools.importing import check_not_rewritten

    names = ("interface", "precision", "strict", "verify", "mask", "padding_id", "shared_prefixes")
    keywords = {name: getattr(arguments, name) for name in names}
    options = RewriteOptions.of_keywords(**keywords, masks=arguments.masks or "any")
    model_file = source.open(Storage.MEMORY, phases, sayer(arguments))
    if calibration is not None:
        begin = steps_of(progress)
        model = quantized_model(
            model_file, source.path, calibration, options, norms=arguments.norms, begin=begin, phases=phases
        )
        return with_bodies(model, metadata_of(model.proto)["precision"])
    check_not_rewritten(model_file.proto, f"'{source.path}'")
    result = rewrite_model(model_file, options, phases=phases)
    return with_bodies(apply_linear(arguments.linear, result.model, norms=arguments.norms), result.precision)
