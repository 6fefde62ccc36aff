# SPDX-License-Identifier: Apache-2.0
"""`padfree build`: builds a TensorRT engine."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.builder.errors import BuildError
from padfree.contract.names import EIGHT_BITS, ONNX_SUFFIX, WHOLE
from padfree.contract.phases import Phases

from .calibrating import add_calibration_options, calibration_of, print_quantization, steps_of
from .console import print_facts, print_phases
from .coverage import print_coverage, print_kept_float32
from .engine_check import engine_check_line, print_engine_check
from .measurements import measured_lines, print_measured
from .opening import opened_model
from .option_kinds import file, integer, switch
from .options import (
    LINEAR,
    add_device_option,
    add_head_options,
    add_norms_option,
    add_output_option,
    add_profile_options,
    add_rewrite_options,
)
from .profiles import engines_of, folder_for
from .stages import add_quiet_option, sayer, stages
from .summary import (
    Line,
    add_verbose_option,
    most_of,
    next_command,
    print_summary,
    repeated_options,
    rewriting_lines,
    run_command,
    target_of,
    wrote,
)

if TYPE_CHECKING:
    from padfree.builder.engine.options import BuildOptions
    from padfree.builder.engine.progress import StageProgress
    from padfree.builder.engine.shared_builder import SharedBuilder
    from padfree.builder.folders.folder_model import FolderModel
    from padfree.builder.folders.source import Source

MIB = 1 << 20
CUDA_THREAD = "padfree-cuda"


HELP = "build a TensorRT engine, or several"
DESCRIPTION = (
    "Builds a TensorRT engine from a model's folder, from an exported model, which is rewritten first, "
    "or from a rewritten one. Writes the plan and, beside it, its metadata (FILE.json), and the tokenizer of a "
    "folder (FILE.tokenizer.json): keep them together. Several models, precisions or profiles become several "
    "engines in a folder, for which TensorRT starts once."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "model",
        type=Path,
        nargs="+",
        help="exported or rewritten model; a model's folder, laid out as on Hugging Face; or its id there",
    )
    add_output_option(parser, "model.plan; for several engines: the folder for MODEL[-PRECISION][-PROFILE].plan")
    add_rewrite_options(parser, precision=None, interface=None, repeatable=True)
    add_head_options(parser)
    add_profile_options(parser)
    group = parser.add_argument_group("TensorRT")
    cache = group.add_mutually_exclusive_group()
    file(cache, "--timing-cache", "FILE", "timing cache (default: one in the user's cache folder)")
    switch(cache, "--no-timing-cache", "neither read nor keep a timing cache")
    integer(group, "--workspace-mib", "MIB", "limit of TensorRT's scratch memory")
    group.add_argument(
        "--optimization-level", type=int, choices=range(6), metavar="0..5", help="TensorRT's effort (default 3)"
    )
    group.add_argument(
        "--linear",
        choices=LINEAR,
        default="auto",
        help="whose kernels multiply packed tokens by weights (default auto: padfree's on Hopper in fp16 and bf16; "
        "on other GPUs the fastest, measured)",
    )
    add_norms_option(group)
    group.add_argument(
        "--measure",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="with --linear auto: build engines with padfree's GEMMs and TensorRT's, time them, and keep the fastest "
        "(default: on GPUs other than Hopper)",
    )
    add_calibration_options(parser)
    add_device_option(group)
    add_quiet_option(parser)
    add_verbose_option(
        parser, "how the time was spent, the engine's properties, tensors that stay float32, and the coverage report"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    start_cuda(arguments.device)
    from padfree.builder.engine.build import check_plan_destinations
    from padfree.builder.engine.shared_builder import SharedBuilder

    _check_revision(arguments)
    engines = engines_of(arguments)
    if all(engine.precision not in EIGHT_BITS for engine in engines):
        calibration_of(engines[0])  # refuses options of fp8 and int8
    cache = _options_of(engines[0]).tactics.timing_cache
    with folder_for(arguments.output) if len(engines) > 1 else contextlib.nullcontext():
        check_plan_destinations([(engine.model, engine.output) for engine in engines], cache)
        builder = SharedBuilder()
        for engine in engines:
            if len(engines) > 1:
                sayer(arguments)(f"{engine.output}: from {engine.model}")  # whatever follows is about this one
            _build(engine, builder)
    return 0


def _check_revision(arguments: argparse.Namespace) -> None:
    """Refuses one revision for several repositories."""
    if arguments.revision and len(arguments.model) > 1:
        raise BuildError(
            f"--revision {arguments.revision} is of one repository, and there are {len(arguments.model)} models; build "
            "each in a call of its own"
        )


def _build(arguments: argparse.Namespace, builder: SharedBuilder) -> None:
    """Builds one engine, and says what was written."""
    from padfree.builder.engine.build import build_engine, check_machine
    from padfree.runtime import parse_metadata

    # Calibration makes the model before a GPU is asked for.
    check = (
        partial(check_machine, arguments.device, operators=()) if arguments.precision in EIGHT_BITS else lambda: None
    )
    with (
        opened_model(
            arguments.model,
            arguments,
            sayer(arguments),
            before_export=check,
            lazily=True,
            with_second_opinion=arguments.verify == WHOLE,
        ) as source,
        stages(arguments) as progress,
        _quantize(arguments, source, progress) as (model, options),
    ):
        metadata = build_engine(
            model,
            arguments.output,
            options,
            progress=progress,
            builder=builder,
            say=sayer(arguments),
            origin=None if model == arguments.model else [str(arguments.model), *repeated_options(arguments)],
        )
    if arguments.verbose:
        facts = dict(metadata["engine"])
        print_phases(facts.pop("build_seconds"))
        print_measured(facts)
        facts.pop("measured", None)
        print_facts("engine", facts)
        print_engine_check(metadata)
        print_kept_float32(metadata)
        print_quantization(parse_metadata(metadata, str(arguments.output)).quantization)
        print_coverage(_coverage(metadata))
    print_summary(_summary(arguments, metadata))


def _options_of(arguments: argparse.Namespace) -> BuildOptions:
    """How the engine is built: most options of the command are named as the keywords."""
    from padfree.builder.engine.engine_builder import DEFAULT_CACHE
    from padfree.builder.engine.options import BuildOptions

    keywords = {name: value for name, value in vars(arguments).items() if name in BuildOptions.keywords()}
    workspace_bytes = None if arguments.workspace_mib is None else arguments.workspace_mib * MIB
    cache = None if arguments.no_timing_cache else arguments.timing_cache or DEFAULT_CACHE
    return BuildOptions.of_keywords(**{**keywords, "workspace_bytes": workspace_bytes, "timing_cache": cache})


def _coverage(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The report at the lengths that the engine is for."""
    from padfree.builder.coverage import report
    from padfree.builder.lengths import choose_lengths

    return report(metadata["coverage"], choose_lengths(metadata["engine"]["profile"]["max_seq_len"], None, None, None))


def _summary(arguments: argparse.Namespace, metadata: Mapping[str, Any]) -> list[Line]:
    """The result in a few lines. Without a tokenizer, the next thing to do is to look at what the engine takes."""
    from padfree.runtime import sidecar_path
    from padfree.runtime.texts import tokenizer_path

    plan = arguments.output
    paths = [plan, sidecar_path(plan)]
    if (metadata.get("text") or {}).get("tokenizer_sha256"):
        paths.append(tokenizer_path(plan))
    return [
        *rewriting_lines(metadata, metadata.get("coverage")),
        ("engine", f"{target_of(metadata['engine'])}; takes {most_of(metadata['engine'])}"),
        *measured_lines(metadata["engine"]),
        ("answers", engine_check_line(metadata)),
        wrote(paths),
        run_command(plan, metadata) or next_command("padfree", "inspect", str(plan)),
    ]


@contextlib.contextmanager
def _quantize(
    arguments: argparse.Namespace, source: Source, progress: StageProgress
) -> Iterator[tuple[Path | FolderModel, BuildOptions]]:
    """The file that the engine is built from, and the options: in 8 bits, a quantised file made of it.

    That file, with its tokenizer, is removed with the context.
    """
    path, options = source.path, _options_of(arguments)
    if options.precision not in EIGHT_BITS:
        yield source.unmade or path, options
        return
    from padfree.builder.calibration import is_quantized, quantized_model
    from padfree.builder.engine.build import check_machine
    from padfree.builder.engine.linear import EIGHT_BIT_OPERATORS
    from padfree.builder.engine.preparation import metadata_of
    from padfree.builder.files import named_as, write_files
    from padfree.builder.folders.companions import kept_files
    from padfree.onnx_tools import save_model
    from padfree.onnx_tools.files import Storage
    from padfree.runtime import parse_metadata

    calibration = None
    quantizes = arguments.calibrate is not None or arguments.keep_scales
    if quantizes or source.unmade is not None or not is_quantized(path):
        calibration = calibration_of(arguments)
    if calibration is None:
        yield path, options
        return
    check_machine(
        arguments.device, operators=(EIGHT_BIT_OPERATORS[options.precision],)
    )  # before minutes of calibration
    with tempfile.TemporaryDirectory(prefix="padfree-quantized-") as scratch:
        quantized_file = Path(scratch) / f"{path.stem}{ONNX_SUFFIX}"
        phases, begin = Phases(progress), steps_of(progress)
        exported = source.open(Storage.MEMORY, phases, sayer(arguments))
        model = quantized_model(
            exported, path, calibration, options.rewriting, norms=options.norms, begin=begin, phases=phases
        )
        save_model(model, quantized_file)
        write_files(kept_files(path, quantized_file, parse_metadata(metadata_of(model.proto), str(path))))
        with named_as({quantized_file: path}):
            yield quantized_file, options.of_rewritten()


def start_cuda(device: int) -> None:
    """Starts CUDA, which takes a second, beside the imports to come. The build finds what is wrong with it again.

    What the thread calls is imported before it starts: of two threads that import modules which import each other, as
    numpy's do, one may get a module that is only half initialised.
    """
    with contextlib.suppress(Exception):
        from padfree.runtime.gpu.cuda import open_device

        def start() -> None:
            with contextlib.suppress(Exception):
                open_device(device)

        threading.Thread(target=start, name=CUDA_THREAD, daemon=True).start()
