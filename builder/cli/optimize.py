# SPDX-License-Identifier: Apache-2.0
"""`padfree optimize`: rewrites an exported model so that it computes no padding."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .console import output_console, print_line
from .coverage import print_coverage
from .options import add_output_option, add_rewrite_options


def add_parser(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "optimize",
        help="rewrite an exported ONNX model",
        description="Rewrites an exported ONNX encoder so that it computes no padding. Needs no GPU; the result "
        "runs in onnxruntime (padfree run) and builds into an engine (padfree build).",
    )
    parser.add_argument("model", type=Path, help="exported model, such as model.onnx")
    add_output_option(parser, "packed.onnx")
    add_rewrite_options(parser, precision="fp32", interface="packed")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the coverage report as JSON")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.files import check_destination, write_files
    from padfree.onnx_tools import rewrite, save_model

    console = output_console()
    for path in (arguments.output, arguments.report):
        if path is not None:
            check_destination(path)
    with console.status("rewriting"):
        result = rewrite(
            arguments.model,
            interface=arguments.interface,
            precision=arguments.precision,
            strict=arguments.strict,
            verify=arguments.verify,
        )
        save_model(result.model, arguments.output)
    report = result.report.to_dict()
    if arguments.report is not None:
        write_files([(arguments.report, json.dumps(report, indent=2).encode() + b"\n")])
    print_coverage(console, report)
    print_line(console, f"wrote {arguments.output} ({arguments.interface}, {arguments.precision})")
    return 0
