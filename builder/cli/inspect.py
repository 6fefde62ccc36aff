# SPDX-License-Identifier: Apache-2.0
"""`padfree inspect`: shows what a model or an engine is and how much of it computes no padding, without running it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.builder.errors import BuildError

from .calibrating import print_quantization
from .console import (
    Working,
    error_console,
    print_facts,
    print_line,
    print_table,
)
from .coverage import print_coverage, print_kept_float32, print_outputs
from .engine_check import print_engine_check
from .measurements import measured_lines, print_measured
from .opening import opened_model
from .option_kinds import file, switch
from .options import (
    add_head_options,
    add_length_options,
    add_mask_option,
    add_tokenizer_option,
    say,
)
from .profiles import PLAN_SUFFIX
from .summary import (
    Line,
    add_verbose_option,
    most_of,
    needs_engine,
    next_command,
    print_summary,
    repeated_options,
    rewriting_lines,
    run_command,
    saving_lines,
    target_of,
)
from .text_lengths import print_text_lengths

if TYPE_CHECKING:
    from padfree.builder.coverage import Inspection
    from padfree.builder.text_lengths import TextLengths

KINDS = {
    "original": "an exported model; what rewriting it gives:",
    "packed": "a rewritten model, packed interface",
    "padded": "a rewritten model, padded interface",
    "varseqlen": "a rewritten model, interface of NVIDIA's variable-length engines",
    "plan": "a TensorRT engine",
}


HELP = "show what a model or an engine is, and what of it is packed"
DESCRIPTION = (
    "Shows interface, inputs, outputs, coverage, plugins and, of a plan, where and for what it was "
    "built. An exported model is rewritten in memory to show what padfree makes of it. Needs neither TensorRT nor "
    "a GPU."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "model", type=Path, help="model.onnx, packed.onnx, model.plan, a model's folder or a Hugging Face id"
    )
    file(
        parser,
        "--texts",
        "FILE",
        "texts (.txt, .jsonl, .csv, .parquet): shows how long they are, and what padding them would cost",
    )
    file(parser, "--plot", "FILE", "with --texts: also draw that, as .svg, .png or .pdf (matplotlib)")
    add_tokenizer_option(parser)
    switch(parser, "--json", "print metadata and report as JSON and nothing else")
    switch(parser, "--strict", "exit with 1 unless everything is packed")
    add_mask_option(parser)
    add_head_options(parser)
    add_length_options(parser)
    add_verbose_option(parser, "inputs, outputs, plugins, texts, every pass and what it missed, and the roofline")


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.coverage import inspect_file, report, require_complete
    from padfree.builder.lengths import check_lengths, choose_lengths
    from padfree.onnx_tools import ModelFileError, RewriteError

    _check_plot(arguments)
    lengths_options = (arguments.batch, arguments.mean_length, arguments.max_length)
    check_lengths(*lengths_options)
    try:
        with (
            opened_model(arguments.model, arguments, say) as source,
            Working(error_console(), f"reading {arguments.model}"),
        ):
            inspected = dataclasses.replace(inspect_file(source.path, arguments.mask), path=arguments.model)
            texts = None if arguments.texts is None else _measure(arguments, source.path, inspected)
    except RewriteError as error:
        if arguments.json and not isinstance(error, ModelFileError):
            print_line(json.dumps({"file": str(arguments.model), "kind": "refused", "reason": str(error)}))
        raise
    cut = (inspected.metadata.get("text") or {}).get("max_length")
    lengths = choose_lengths(inspected.limit, *lengths_options, cut=cut)
    coverage = inspected.metadata.get("coverage")
    details = {
        "file": str(inspected.path),
        "kind": inspected.kind,
        **inspected.metadata,
        "coverage": report(coverage, lengths, arguments.gpu) if coverage else None,
        **({} if texts is None else {"texts": texts.to_dict()}),
    }
    if arguments.json:
        print_line(json.dumps(details, indent=2))
    else:
        if arguments.verbose:
            _print(inspected, details)
        print_summary(_summary(arguments, inspected, details))
        if texts is not None:
            print_text_lengths(texts)
    if texts is not None and arguments.plot is not None:
        from padfree.builder.text_plot import draw_text_lengths

        draw_text_lengths(texts, f"{arguments.texts.name} in tokens of {arguments.model.name}", arguments.plot)
        if not arguments.json:
            print_line(f"wrote {arguments.plot}")
    if arguments.strict:
        require_complete(coverage or {}, str(inspected.path))
    return 0


def _check_plot(arguments: argparse.Namespace) -> None:
    """Refuses a picture that could not be drawn, before the work that it shows. Raises BuildError."""
    from padfree.builder.destinations import check_destinations
    from padfree.builder.simulate.plot import check_plot

    if arguments.plot is None:
        return
    if arguments.texts is None:
        raise BuildError(f"--plot {arguments.plot}: draws lengths of texts; pass --texts FILE, or leave --plot out")
    inputs = [("the model", arguments.model), ("--texts", arguments.texts), ("--tokenizer", arguments.tokenizer)]
    check_destinations([("--plot", arguments.plot)], inputs)
    check_plot(arguments.plot)


def _measure(arguments: argparse.Namespace, path: Path, inspected: Inspection) -> TextLengths:
    from padfree.builder.text_lengths import measure_texts

    limits = (arguments.max_length, (inspected.metadata.get("text") or {}).get("max_length"), inspected.limit)
    longest = min((limit for limit in limits if limit is not None), default=None)
    return measure_texts(arguments.texts, path, inspected.metadata, arguments.tokenizer, longest)


def _summary(arguments: argparse.Namespace, inspected: Inspection, report: Mapping[str, Any]) -> list[Line]:
    """What it is in a few lines, and what can be done with it next."""
    from padfree.builder.gpu_files import no_gpu

    model, engine, original = arguments.model, report.get("engine"), inspected.kind == "original"
    outputs = ", ".join(f"{item['name']} {_sizes(item)}" for item in report["outputs"])
    inputs = ", ".join(item["name"] for item in report["inputs"])
    sizes = f"sequences of {_longest(inspected.limit)}" if engine is None else most_of(engine)
    target = "" if engine is None else f" for {target_of(engine)}"
    lines = [
        ("model", f"{inspected.path}, {KINDS[inspected.kind].rstrip(':')}{target}"),
        ("takes", f"{inputs}; {sizes}{_cut_text(report)}"),
        ("gives", f"{outputs}, {_types(inspected)}"),
        *rewriting_lines(report, report["coverage"], with_errors=not original),
        *saving_lines(report["coverage"]),
        *measured_lines(engine or {}),
    ]
    if original:
        return [
            *lines,
            next_command("padfree", "optimize", str(model), "-o", "packed.onnx", *repeated_options(arguments)),
        ]
    build = next_command("padfree", "build", str(model), "-o", str(model.with_suffix(PLAN_SUFFIX)))
    only_runs = engine is not None or (no_gpu() != "" and not needs_engine(model, report))
    usual = next_command("padfree", "costs", str(model), "-o", "costs.json") if only_runs else build
    return [*lines, run_command(model, report) or usual]


def _longest(limit: int | None) -> str:
    return "any length" if limit is None else f"at most {limit} tokens"


def _cut_text(report: Mapping[str, Any]) -> str:
    """Where the folder has texts cut, if that is before the model's last position."""
    cut, limit = (report.get("text") or {}).get("max_length"), report.get("max_positions")
    return "" if cut is None or (limit is not None and cut >= limit) else f", texts cut at {cut}"


def _sizes(output: Mapping[str, Any]) -> str:
    """The axes of an output: letters and numbers."""
    leading = {"packed": ["T"], "per_sequence": ["B"], "padded": ["B", "S"], "constant": []}[output["layout"]]
    dims = [str(size) for size in output.get("dims") or leading]
    shape = output.get("shape") or []
    return f"[{', '.join(dims + [str(size or '?') for size in shape[len(dims) :]])}]"


def _print(inspected: Inspection, report: Mapping[str, Any]) -> None:
    print_line(f"{inspected.path}: {KINDS[inspected.kind]}")
    layers, width = report["num_layers"], report.get("hidden_size")
    size = "" if width is None else f", hidden size {width}"  # that of what PadfreeAttention gives
    print_line(
        f"{report['interface']} interface, {_types(inspected)}, {layers} PadfreeAttention layer{'s' * (layers != 1)}"
        f"{size}, sequences of {_longest(report.get('max_positions'))}{_cut_text(report)}; padfree {report['version']}",
    )
    rows = [
        (item["name"], item["role"], item["dtype"], "-" if item.get("limit") is None else f"0..{item['limit'] - 1}")
        for item in report["inputs"]
    ]
    print_table("inputs", ("input", "role", "type", "values"), rows)
    print_outputs(report["outputs"])
    print_kept_float32(report)
    print_quantization(inspected.quantization)
    if report.get("text"):
        print_facts("texts", report["text"])
    plugin_layers = report.get("engine", {}).get("plugin_layers")
    columns = ("operator", "count") if plugin_layers is None else ("operator", "graph count", "engine count")
    plugins = [
        (name, str(count), *([] if plugin_layers is None else [str(plugin_layers.get(name, 0))]))
        for name, count in (report.get("plugins") or {}).items()
    ]
    print_table("plugins", columns, plugins)
    if "engine" in report:
        elsewhere = ("plugin_layers", "measured")
        print_facts("engine", {k: v for k, v in report["engine"].items() if k not in elsewhere})
        print_measured(report["engine"])
        print_engine_check(report)
    if report["coverage"]:
        print_coverage(report["coverage"])


def _types(inspected: Inspection) -> str:
    """What numbers it computes with."""
    precision = str(inspected.metadata["precision"])
    return precision if inspected.quantization is None else f"GEMMs in {inspected.quantization.type}, else {precision}"
