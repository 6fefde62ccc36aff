# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/json.md from what the commands print about a small model.

python -m tests.builder.json_page      writes it again
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.builder import cli
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.measurements import Measurements, PaddedTime, TimedChoice, TimedRequest

from tests.builder import json_keys
from tests.support.pages import ROOT

DOCUMENT = ROOT / "docs" / "reference" / "json.md"
FROZEN_PLAN = ROOT / "tests" / "frozen" / "files" / "plan.json"
"""The metadata of a plan, which only a machine with a GPU can make."""
MEASURED = Measurements(
    (TimedRequest((8, 4)), TimedRequest((4,))),
    (TimedChoice("padfree", "folded", (1.5, 0.5)), TimedChoice("tensorrt", "separate", problem="no memory")),
    PaddedTime(0.4),
)
"""What builds on other GPUs than Hopper add to it."""
HEAD = """# The JSON of the commands

This page lists the keys of all JSON that commands write, for people whose programs read it. Keys stay when padfree
changes: new ones may appear, and none disappears or changes its meaning without a note in the
[changes](../../CHANGELOG.md). `python -m tests.builder.json_page` writes this page from what the commands print about a
small model, and a test compares them.

A key inside a list is written `inputs[].name`; `*` stands for a name, such as an output's. Other pages have the keys of
[`padfree bench`](bench.md#as-json), [`padfree optimize --report`](report.md#as-json), [cost
tables](../internals/batching.md#cost-tables), [`padfree doctor --check`](../guide/gpus.md#add-yours) and [`padfree
serve`'s access log](serve.md#the-access-log).
"""
TYPES = {
    "str": "string",
    "int": "int",
    "float": "number",
    "bool": "bool",
    "NoneType": "null",
    "dict": "object",
    "list": "list",
}
NULLABLE = {
    "environment.*": "string",
    "max_positions": "int",
    "runners[].bisection": "object",
    "runners[].tolerance.cosine": "number",
    "workers[].idle": "number",
}
"""Keys whose values may be null or of this type, whatever they are for this model on this machine."""


@dataclass(frozen=True)
class Section:
    """One kind of JSON: its heading, the text about it, the meanings of its keys, and values that commands wrote."""

    title: str
    about: str
    meanings: Mapping[str, str]
    values: Sequence[Any]


def types(value: Any, named: set[str], key: str = "") -> Iterator[tuple[str, str]]:
    """Keys of a value, and the types of their values; the keys of objects in `named` are names."""
    if isinstance(value, dict) and key in named:
        for item in value.values():
            yield f"{key}.*", TYPES[type(item).__name__]
    elif isinstance(value, dict) and value:
        for name, item in value.items():
            yield from types(item, named, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            yield from types(item, named, f"{key}[]")
    else:
        yield key, TYPES[type(value).__name__]


def table(section: Section) -> list[str]:
    """One row per key, in the order of the values.

    Raises:
        KeyError: a key has no meaning.
    """
    named = {key.removesuffix(".*") for key in section.meanings if key.endswith(".*")}
    found: dict[str, dict[str, None]] = {}
    for value in section.values:
        for key, kind in types(value, named):
            found.setdefault(key, {})[kind] = None
    rows = [f"| `{key}` | {show_types(key, set(kinds))} | {section.meanings[key]} |" for key, kinds in found.items()]
    return ["| key | type | meaning |", "|---|---|---|", *rows]


def show_types(key: str, kinds: set[str]) -> str:
    """The types of a key as shown in a cell: "number" includes "int", and null comes last."""
    if "number" in kinds:
        kinds = kinds - {"int"}
    if key in NULLABLE:
        kinds = {NULLABLE[key], "null"}
    return " or ".join(sorted(kinds, key=lambda kind: (kind == "null", kind)))


def run(command: str) -> str:
    """What a command prints.

    Raises:
        RuntimeError: it failed.
    """
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = cli.main(shlex.split(command))
    if status != 0:
        raise RuntimeError(f"{command}: {errors.getvalue()}")
    return output.getvalue()


def lines(path: str) -> list[Any]:
    """The values in a file of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def sections() -> list[Section]:
    """All sections, from commands that run in the current folder."""
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", "model.onnx")
    shutil.copy(DEMO_DATA / "tokenizer.json", "tokenizer.json")
    Path("texts.txt").write_text("a cat\nrain today\n", encoding="utf-8")
    run("optimize model.onnx -o packed.onnx -q")
    run("optimize model.onnx -o vectors.onnx --pooling mean -q")
    run("compare model.onnx packed.onnx --max-seq-len 8 --json compare.json")
    run("costs packed.onnx -o costs.json --lengths 4,8 --batches 1,2 --repeats 2")
    run("simulate costs.json --rates 10 --seconds 1 --max-length 8 --json simulation.jsonl")
    run("run vectors.onnx --input texts.txt --tokenizer tokenizer.json -o answers.jsonl -q")
    run("embed vectors.onnx --input texts.txt --tokenizer tokenizer.json -o vectors -q")
    inspected = json.loads(run("inspect packed.onnx --json"))
    plan = json.loads(FROZEN_PLAN.read_text("utf-8"))
    return [
        Section(
            "Metadata",
            "`padfree inspect --json`, `model.plan.json`, and the property `padfree` of rewritten files. Only plans "
            "have `engine`. Some models have further keys, which [runtime](runtime.md#the-metadata), "
            "[folders](../guide/folders.md#what-is-kept) and [accuracy](../guide/accuracy.md#every-engine-is-checked) "
            "describe, such as `text`, `fixed`, `kept_float32` and `check`.",
            json_keys.METADATA,
            [inspected, plan, {"engine": {"measured": MEASURED.to_dict()}}],
        ),
        Section(
            "Comparison", "`padfree compare --json FILE`.", json_keys.COMPARISON, [json.loads(read("compare.json"))]
        ),
        Section(
            "State of the machine", "`padfree doctor --json`.", json_keys.DOCTOR, [json.loads(run("doctor --json"))]
        ),
        Section(
            "Simulation",
            "`padfree simulate --json FILE`, one line per policy and rate.",
            json_keys.SIMULATION,
            lines("simulation.jsonl"),
        ),
        Section(
            "Answers",
            "`padfree run -o FILE.jsonl`, one line per text, here for a model of vectors.",
            json_keys.ANSWERS,
            lines("answers.jsonl"),
        ),
        Section(
            "Bulk report",
            "`_report.json` of `padfree embed` and `padfree rerank`.",
            json_keys.BULK,
            [json.loads(read("vectors/_report.json"))],
        ),
    ]


def read(path: str) -> str:
    """The text of a file."""
    return Path(path).read_text("utf-8")


def render() -> str:
    """The whole page; its commands write to the current folder."""
    parts = [f"## {item.title}\n\n{textwrap.fill(item.about, 120)}\n\n" + "\n".join(table(item)) for item in sections()]
    return "\n\n".join([HEAD.rstrip(), *parts]) + "\n"


def main() -> None:
    """Writes the page."""
    with tempfile.TemporaryDirectory(prefix="padfree-json-") as folder:
        os.chdir(folder)
        DOCUMENT.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
