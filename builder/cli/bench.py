# SPDX-License-Identifier: Apache-2.0
"""`padfree bench`: measures a model's packed engine beside its peers."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.builder.errors import BuildError
from padfree.contract.names import EIGHT_BITS, PRECISIONS

from .console import Working, error_console, number_text, print_line, print_table
from .opening import opened_model
from .option_kinds import file, integer, number, parts_of, seed, switch, value_of, word
from .options import add_device_option, add_head_options, add_mask_option, say

if TYPE_CHECKING:
    from padfree.builder.bench.measure import Measurement, Timing

UNIFORM = "uniform"


HELP = "measure an engine beside its peers"
DESCRIPTION = (
    "Builds a packed engine of an exported model, checks its answers and those of every peer against "
    "the original in fp32, times all in turn in one process, and prints a table. A peer that is not installed or "
    "does not apply is named with the reason. Without a GPU and TensorRT: the original and the rewritten file in "
    "onnxruntime on the CPU."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        help="exported model, such as model.onnx; a model's folder; or a Hugging Face id",
    )
    add_head_options(parser)
    group = parser.add_argument_group("batch")
    integer(group, "--batch", "B", "sequences (default 16; with a file of lengths: its lines)")
    integer(group, "--seq-len", "S", "what padded peers pad to (default: the model's limit)")
    number(group, "--mean", "L", "mean length, in tokens (default 0.6 S)")
    word(group, "--lengths", "uniform|FILE", "uniform up to S with that mean, or a file of lengths", default=UNIFORM)
    seed(group, "seed of tokens and order")
    group = parser.add_argument_group("contenders")
    group.add_argument(
        "--precision",
        choices=(*PRECISIONS, *EIGHT_BITS),
        help="fp8, int8: padfree's GEMMs in e4m3 or int8, scales from the measured batch, beside peers in e4m3 and "
        "fp16. Default: fp16 on a GPU, fp32 on the CPU",
    )
    add_mask_option(group)
    word(group, "--peers", "LIST", "names separated by commas (default: all); `--peers list` prints them")
    file(group, "--torch", "FOLDER", "the model as save_pretrained wrote it, for PyTorch")
    file(group, "--timing-cache", "FILE", "TensorRT's (default: in the user's cache folder)")
    add_device_option(group)
    switch(group, "--cpu", "compare in onnxruntime on the CPU, also on a machine with a GPU")
    file(parser, "--json", "FILE", "append the results as one JSON line")


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.bench.cases import BenchCase, measure
    from padfree.builder.bench.environment import append_record
    from padfree.builder.destinations import check_appended, check_destinations
    from padfree.builder.doctor import ENGINE_PARTS, diagnose
    from padfree.builder.engine.engine_builder import DEFAULT_CACHE

    peers = None if arguments.peers is None else list(parts_of(arguments.peers))
    if peers == ["list"]:
        _print_peers()
        return 0
    if arguments.model is None:
        raise BuildError(
            "give a model to measure, such as model.onnx or a model's folder; only `--peers list` needs none"
        )
    missing = [item.name for item in diagnose() if item.name in ENGINE_PARTS and item.state != "ok"]
    on_cpu = arguments.cpu or bool(missing)
    case = value_of(
        BenchCase,
        arguments,
        lengths=None if arguments.lengths == UNIFORM else Path(arguments.lengths),
        precision=arguments.precision or ("fp32" if on_cpu else "fp16"),
        torch_folder=arguments.torch,
    )
    inputs = [("the model", case.model), ("--lengths", case.lengths)]
    check_destinations([("--json", arguments.json)], inputs, caches=[("--timing-cache", arguments.timing_cache)])
    if arguments.json is not None:
        check_appended(arguments.json, "--json")
    if missing and not arguments.cpu:
        print_line(f"on the CPU: engines need {', '.join(missing)}, which `padfree doctor` explains")
    with (
        opened_model(case.model, arguments, say) as source,
        tempfile.TemporaryDirectory(prefix="padfree-bench-") as folder,
        Working(error_console(), "rewriting") as set_status,
    ):
        record, measurement = measure(
            dataclasses.replace(case, model=source.path),
            peers,
            on_cpu=on_cpu,
            folder=Path(folder),
            timing_cache=arguments.timing_cache or DEFAULT_CACHE,
            device=arguments.device,
            say=set_status.update,
        )
    if arguments.json is not None:
        append_record(arguments.json, record)
    print_measurement(record, measurement)
    return 0


def print_measurement(record: Mapping[str, Any], measurement: Measurement) -> None:
    """Prints a measurement as a table, and who could not take part."""
    from padfree.builder.bench.measure import OURS, best

    ours_ms = measurement.ours_ms

    def row(title: str, way: str, timing: Timing, error: float | None) -> tuple[str, ...]:
        ratio = f"{timing.median_ms / ours_ms:.2f}"
        return (title, way, f"{timing.median_ms:.3f}", f"{100 * timing.spread:.1f} %", ratio, number_text(error, ".1e"))

    rows = [row(OURS, way, timing, measurement.errors[OURS]) for way, timing in measurement.ours.items()]
    for title, timings in sorted(measurement.peers.items(), key=lambda item: best(item[1])):
        rows += [row(title, way, timing, measurement.errors[title]) for way, timing in timings.items()]
    if measurement.limit is not None:
        rows.append(row("limit: GEMMs alone", "CUDA graph", measurement.limit, None))
    print_line(
        f"{record['case']}: {record['batch']} sequences, {record['tokens']} tokens in {record['slots']} slots, "
        f"{record['precision']}, {record['gpu'] if record['device'] == 'gpu' else 'CPU'}",
    )
    columns = ("contender", "way", "median ms", "spread", "times padfree's", "error")
    print_table("one batch", columns, rows)
    for title, reason in measurement.unavailable.items():
        print_line(f"without {title}: {reason}")


def _print_peers() -> None:
    from padfree.builder.peers.catalog import CPU_PEERS, GPU_PEERS

    rows = [
        (name, peer.title, device)
        for peers, device in ((GPU_PEERS, "GPU"), (CPU_PEERS, "CPU"))
        for name, peer in peers.items()
    ]
    print_table("peers", ("name", "peer", "where"), rows)
