# SPDX-License-Identifier: Apache-2.0
"""`padfree compare`: is it the same model, and if not, where does it differ?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from padfree.builder.errors import BuildError
from padfree.builder.gpu_files import no_gpu
from padfree.contract.names import INTERFACES, PRECISIONS

from .console import Working, error_console, number_text, print_line, print_table
from .opening import opened_model
from .option_kinds import file, integer, names_of, number, seed, switch, value_of
from .options import add_device_option, add_head_options, add_mask_option, add_tokenizer_option, say

if TYPE_CHECKING:
    from padfree.builder.compare.report.report import Report, RunnerReport

WORST_COLUMNS = ("batch", "request", "position", "output", "original", "this model", "relative")
LOOK_INSIDE = "compare the packed .onnx file it was made from, with the runner onnxrt-packed or trt"
RUNNERS = ("onnxrt", "onnxrt-packed", "trt", "trt-padded", "torch")


HELP = "compare models with the one they were made from"
DESCRIPTION = (
    "Runs the original in onnxruntime and other models on the same padded batches, and compares their "
    "outputs on every valid token, with Polygraphy. Exit code 0 only where all agree within their tolerances."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    from padfree.builder.compare.tolerances import describe_tolerances

    parser.epilog = describe_tolerances()
    parser.add_argument(
        "original", type=Path, help="the reference: the exported model, a model's folder or a Hugging Face id"
    )
    parser.add_argument(
        "models",
        type=Path,
        nargs="*",
        help="rewritten .onnx files and plans made from it (default: what it is rewritten to now)",
    )
    parser.add_argument(
        "--runners",
        type=names_of(RUNNERS, "runner"),
        default=(),
        metavar="LIST",
        help=f"comma-separated, of {', '.join(RUNNERS)} (default: what fits the files). onnxrt is the "
        "reference and always runs; trt builds engines from .onnx files; trt-padded is the original in TensorRT alone, "
        "in fp16",
    )
    _add_model_options(parser)
    add_head_options(parser)
    _add_data_options(parser)
    _add_output_options(parser)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument(
        "--interface",
        choices=INTERFACES,
        default="packed",
        help="interface to rewrite to where no model is given (default packed)",
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="precision to rewrite to where no model is given (default fp32)",
    )
    add_mask_option(group)
    file(group, "--torch-model", "PATH", "a Hugging Face folder, or a script with load_model()")
    number(group, "--absolute-tolerance", "X", "instead of the precision's, see below")
    number(group, "--relative-tolerance", "X", "instead of the precision's, see below")
    add_device_option(group)


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    file(
        group,
        "--data",
        "FILE",
        "texts (.txt, .jsonl), token ids (.jsonl, .json, .npz; grids with their mask keep it), inputs that "
        "Polygraphy saved (.json), or a Polygraphy data loader script (.py with load_data()); default: generated "
        "ragged batches, and left padding and holes for padded models",
    )
    add_tokenizer_option(group, "a folder's")
    switch(group, "--truncate", "truncate texts to the model's positions")
    integer(group, "--max-seq-len", "S", "longest generated sequence (default: at most 512)")
    seed(group, "seed of generated batches")


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    switch(
        group,
        "--bisect",
        "also compare intermediate tensors of models given as .onnx files and name the first node that differs",
    )
    file(group, "--json", "FILE", "also write the report as JSON")
    file(group, "--html", "FILE", "also write it as one HTML page (implies --bisect)")
    file(
        group,
        "--emit-polygraphy",
        "DIR",
        "instead of comparing, write the data and scripts with which `polygraphy run` does it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.compare.saved import check_folder
    from padfree.builder.destinations import check_destinations

    engines = [name for name in arguments.runners if name.startswith("trt")]
    if engines and no_gpu():
        raise BuildError(
            f"--runners {','.join(engines)}: engines run on a GPU, and {no_gpu()}; leave it out to compare .onnx "
            "files, which run in onnxruntime on the CPU"
        )
    inputs = [("the original", arguments.original), *(("the model", path) for path in arguments.models)]
    inputs += [
        ("--data", arguments.data),
        ("--tokenizer", arguments.tokenizer),
        ("--torch-model", arguments.torch_model),
    ]
    check_destinations([("--json", arguments.json), ("--html", arguments.html)], inputs)
    if arguments.emit_polygraphy is not None:
        check_folder(arguments.emit_polygraphy, arguments.original, arguments.models, inputs)
    with opened_model(arguments.original, arguments, say) as source:
        if arguments.emit_polygraphy is not None and source.path != arguments.original:
            raise BuildError(
                "--emit-polygraphy writes scripts that read the original again, and the file that is made of a folder, "
                "or with --pooling and the like, goes when this command ends; give an .onnx file that stays"
            )
        return _compare(arguments, source.path)


def _compare(arguments: argparse.Namespace, original: Path) -> int:
    """Compares, or writes what is needed for it, and prints what was found."""
    from padfree.builder.compare.comparison import CompareOptions, compare, emit
    from padfree.builder.compare.data import DataOptions
    from padfree.builder.compare.report.page import write_page
    from padfree.builder.compare.report.report import write_json
    from padfree.runtime.texts import tokenizer_path

    own_tokenizer = tokenizer_path(original)
    tokenizer = arguments.tokenizer or (own_tokenizer if own_tokenizer.is_file() else None)
    data = value_of(DataOptions, arguments, file=arguments.data, tokenizer=tokenizer)
    bisects = arguments.bisect or arguments.html is not None
    options = value_of(CompareOptions, arguments, data=data, bisect=bisects)
    if arguments.emit_polygraphy is not None:
        commands = emit(original, arguments.models, options, arguments.emit_polygraphy)
        print_line("\n".join([f"wrote {arguments.emit_polygraphy}; commands.sh in it says:", *commands]))
        return 0
    with Working(error_console(), "comparing") as set_status:
        report = compare(original, arguments.models, options, say=set_status.update)
    if original != arguments.original:
        report = report.with_name(original, arguments.original)
    _print_report(report, bisected=options.bisect)
    for path, write in ((arguments.json, write_json), (arguments.html, write_page)):
        if path is not None:
            write(report, path)
            print_line(f"wrote {path}")
    return 0 if report.passed else 1


def _print_report(report: Report, *, bisected: bool) -> None:
    rows = [
        (item.name, item.mask, str(item.sequences), str(item.tokens), str(item.padded_tokens))
        for item in report.batches
    ]
    print_table("batches", ("batch", "mask", "sequences", "tokens", "padded tokens"), rows)
    for runner in report.runners:
        _print_runner(runner, bisected=bisected)
    for note in report.notes:
        print_line(note)
    print_line(f"{'PASSED' if report.passed else 'FAILED'}: {report.verdict}")


def _print_runner(runner: RunnerReport, *, bisected: bool) -> None:
    rows = []
    for item in runner.outputs:
        for name, errors in {"all": item.total, **item.classes}.items():
            figures = (f"{errors.absolute:.2e}", f"{errors.relative:.2e}", f"{errors.cosine:.7f}")
            rows.append((item.output if name == "all" else "", name, str(errors.rows), *figures))
    columns = ("output", "lengths", "rows", "absolute", "relative", "cosine")
    title = f"{runner.name} ({runner.precision}), {runner.run_ms:.0f} ms"
    print_table(title, columns, rows)
    if not runner.passed:
        print_table("worst rows", WORST_COLUMNS, _worst_rows(runner))
    print_line(f"{runner.name} {runner.verdict}")
    if bisected and runner.bisection is None:
        print_line(f"{runner.name} inside: not looked into; {LOOK_INSIDE}")
    elif runner.bisection is not None:
        print_line(f"{runner.name} inside: {runner.bisection.verdict}")


def _worst_rows(runner: RunnerReport) -> list[tuple[str, ...]]:
    return [
        (
            *(row.batch, str(row.request), number_text(row.position, "d"), item.output),
            *(f"{row.wanted:.6g}", f"{row.found:.6g}", f"{row.relative:.2e}"),
        )
        for item in runner.outputs
        for row in item.worst
    ]
