# SPDX-License-Identifier: Apache-2.0
"""`padfree inspect`: shows what an engine or a rewritten model is, without running it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .console import facts_table, make_table, output_console, print_line
from .coverage import print_coverage

ONNX_SUFFIX = ".onnx"


def add_parser(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="show what an engine or a rewritten model is",
        description="Shows interface, inputs, outputs, coverage, plugins and, of a plan, where and for what it was "
        "built. Needs neither TensorRT nor a GPU.",
    )
    parser.add_argument("model", type=Path, help="model.plan or packed.onnx")
    parser.add_argument("--json", action="store_true", help="print the metadata as JSON and nothing else")
    parser.set_defaults(function=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    raw = read_onnx(arguments.model) if arguments.model.suffix == ONNX_SUFFIX else read_plan(arguments.model)
    console = output_console()
    if arguments.json:
        print_line(console, json.dumps(raw, indent=2))
        return 0
    limits = ("max_positions", "hidden_size", "num_layers")
    console.print(
        facts_table(
            str(arguments.model),
            {name: raw.get(name) for name in ("interface", "precision", "version", *limits)},
        )
    )
    rows = [
        (item["name"], item["role"], item["dtype"], "-" if item["limit"] is None else f"0..{item['limit'] - 1}")
        for item in raw["inputs"]
    ]
    console.print(make_table("inputs", ("input", "role", "type", "values"), rows))
    outputs = [(item["name"], item["layout"], item["dtype"]) for item in raw["outputs"]]
    console.print(make_table("outputs", ("output", "layout", "type"), outputs))
    built = raw.get("engine", {}).get("plugin_layers", {})
    plugins = [(name, str(count), str(built.get(name, "-"))) for name, count in raw.get("plugins", {}).items()]
    console.print(make_table("plugins", ("operator", "graph count", "engine count"), plugins))
    if raw.get("coverage"):
        print_coverage(console, raw["coverage"])
    if "engine" in raw:
        console.print(facts_table("engine", {k: v for k, v in raw["engine"].items() if k != "plugin_layers"}))
    return 0


def read_plan(path: Path) -> dict[str, Any]:
    """The metadata of a plan; also checks that the plan is whole."""
    from padfree.runtime.metadata import open_plan

    return dict(open_plan(path).raw)


def read_onnx(path: Path) -> dict[str, Any]:
    """The metadata of a rewritten model."""
    from padfree.builder.build import metadata_of
    from padfree.builder.errors import BuildError
    from padfree.onnx_tools import load_model
    from padfree.runtime.metadata import ONNX_METADATA_KEY, parse_metadata

    model = load_model(path)
    if not any(item.key == ONNX_METADATA_KEY for item in model.metadata_props):
        raise BuildError(
            f"{path}: holds no padfree metadata, so it is not a rewritten model; first run: "
            f"padfree optimize {path} -o packed.onnx"
        )
    return dict(parse_metadata(metadata_of(model), str(path)).raw)
