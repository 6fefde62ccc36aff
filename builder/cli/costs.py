# SPDX-License-Identifier: Apache-2.0
"""`padfree costs`: measures what runs of an engine or a rewritten model cost, for batching policies and simulations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .console import number_text, print_line, print_table
from .option_kinds import integer, numbers_of, word
from .options import add_device_option, add_output_option, add_revision_option
from .row_progress import show_batches
from .stages import add_quiet_option, sayer

HELP = "measure what runs cost, by length and batch"
DESCRIPTION = (
    "Times runs of an engine (TensorRT) or a rewritten .onnx file (onnxruntime, CPU) over a grid of "
    "sequence lengths and batches, from ids on the host to results on the host, and writes a cost table for "
    "batching policies and `padfree simulate`. On a CPU, where runs take seconds, the default grid is coarser and "
    "has fewer runs: 96 instead of 1,242 for a model of 512 positions."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "model", type=Path, help="model.plan or packed.onnx; a model's folder or a Hugging Face id runs on the CPU"
    )
    add_revision_option(parser)
    add_output_option(parser, "costs.json")
    word(
        parser,
        "--lengths",
        "LIST",
        "separated by commas, growing (default: 16 to the model's longest; on a CPU every fourfold)",
    )
    word(
        parser,
        "--batches",
        "LIST",
        "separated by commas, growing from 1 (default: powers of two to the maximum; on a CPU powers of four)",
    )
    integer(parser, "--repeats", "N", "timed runs per cell (default 20; 5 on a CPU)")
    add_device_option(parser)
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.bench.environment import environment
    from padfree.builder.destinations import check_destinations
    from padfree.builder.files import write_files
    from padfree.builder.folders.packing import runnable
    from padfree.runtime import Session
    from padfree.runtime.batching.measure import measure_costs, tokens_of_runs

    check_destinations([("-o", arguments.output)], [("the model", arguments.model)])
    grid: dict[str, Any] = {
        "lengths": arguments.lengths and numbers_of(arguments.lengths, int, "--lengths", "16,64,256"),
        "batches": arguments.batches and numbers_of(arguments.batches, int, "--batches", "1,2,4"),
        "repeats": arguments.repeats,
    }
    facts = {"model": arguments.model.name, **environment()}
    with (
        runnable(arguments.model, revision=arguments.revision, say=sayer(arguments)) as model,
        Session(model, device=arguments.device) as session,
        show_batches(tokens_of_runs(session, **grid), quiet=arguments.quiet, what="runs") as ran,
    ):
        costs = measure_costs(session, **grid, environment=facts, on_run=lambda tokens: ran(1, tokens))
    write_files([(arguments.output, costs.to_json().encode())])
    columns = ("tokens", *(f"{batch} x" for batch in costs.batches))
    rows = [
        (str(length), *(number_text(cost, ".3f") for cost in row))
        for length, row in zip(costs.lengths, costs.cost_ms, strict=True)
    ]
    print_table(f"milliseconds per run, {costs.interface}", columns, rows)
    print_line(f"wrote {arguments.output}")
    return 0
