# SPDX-License-Identifier: Apache-2.0
"""The engines of the matrix: which files there are, and what their inputs mean."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto, ValueInfoProto
from padfree.onnx_tools import load_model
from padfree.onnx_tools.files import Storage

from tests.support import exports, exports_table, families, tiny_folders

INTERFACES, PRECISIONS = ("packed", "padded"), ("fp32", "fp16", "bf16")
VARSEQLEN = "varseqlen"  # the packed interface with the inputs of NVIDIA's plugins, for one file per family
DEFINITIONS = "definitions"
ROOT = Path(__file__).resolve().parents[2]
MADE = {"wide": "tests.fixtures.make_wide", "forms": "tests.fixtures.make_forms"}
"""Sources whose files a module exports to FOLDER, together with a list of them, FOLDER/SOURCE.json."""


@dataclass(frozen=True)
class Entry:
    """One engine of the matrix.

    `source`: "definitions" (tiny folders, as padfree's definitions write them), "families" (tiny exports), "wide"
    (models that run the kernels of real ones), "forms" (other models of that width: decoders, embeddings as the input,
    what other frameworks write) or "exports".
    """

    source: str
    name: str
    interface: str
    precision: str

    @property
    def key(self) -> str:
        """SOURCE/NAME/INTERFACE/PRECISION."""
        return f"{self.source}/{self.name}/{self.interface}/{self.precision}"

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Entry:
        """The engine that a record describes."""
        return cls(*(str(record[field.name]) for field in fields(cls)))

    def load(self, folder: Path) -> tuple[ModelProto, list[exports.Input]]:
        """The original model, and what its inputs mean."""
        if self.source == "exports":
            return exports.load(self.name), exports_table.inputs_of(self.name)
        path = (folder if self.source in MADE else families.FOLDER) / f"{self.name}.onnx"
        model = _load_definition(self.name) if self.source == DEFINITIONS else load_model(path)
        return model, [_input(value) for value in model.graph.input]


def _load_definition(name: str) -> ModelProto:
    with tempfile.TemporaryDirectory() as scratch:
        return tiny_folders.define(name, Path(scratch)).model(Storage.MEMORY).whole()


def _input(value: ValueInfoProto) -> exports.Input:
    name = value.name
    if value.type.tensor_type.elem_type == TensorProto.FLOAT:
        return exports.Input(name, "embeddings", high=value.type.tensor_type.shape.dim[-1].dim_value)
    kind = "mask" if "mask" in name else "types" if "type" in name else "ids"
    return exports.Input(name, kind, low=families.SPECIAL_IDS if kind == "ids" else 0, high=families.VOCABULARY)


def prepare(folder: Path, patterns: Sequence[str]) -> None:
    """Exports the wide models and forms once, if PyTorch is installed and the patterns may select them."""
    if importlib.util.find_spec("torch") is None:
        return
    heads = {pattern.split("/")[0] for pattern in patterns}
    everything = any("*" in head or "?" in head or "[" in head for head in heads)
    for source, module in MADE.items():
        listed = folder / f"{source}.json"
        if (everything or source in heads) and not listed.exists():
            command = [sys.executable, "-W", "ignore", "-m", module, str(listed.resolve())]
            subprocess.run(command, check=True, cwd=ROOT)


def entries(folder: Path) -> list[Entry]:
    """All engines, the slow ones first. Only one tiny file per family also comes in half precision."""
    found = list[Entry]()
    for source in MADE:
        listed = folder / f"{source}.json"
        names = json.loads(listed.read_text()) if listed.exists() else []
        found += [Entry(source, name, i, p) for name in names for p in PRECISIONS for i in INTERFACES]
    defined = tiny_folders.families().values()
    found += [Entry(DEFINITIONS, name, i, p) for name in defined for p in PRECISIONS for i in INTERFACES]
    seen = set[str]()
    for case in families.all_cases():
        if case.static or case.dtype != "fp32" or case.activation:
            continue  # files of fixed sizes run no single sequences; the others differ in the original only
        precisions = PRECISIONS
        if case.family in seen:
            precisions = PRECISIONS[:1]
        else:
            found.append(Entry("families", case.name, VARSEQLEN, "fp16"))
        seen.add(case.family)
        found += [Entry("families", case.name, i, p) for p in precisions for i in INTERFACES]
    named = [name for name in exports.names() if exports.inputs_of(name)]
    return [*found, *(Entry("exports", name, i, "fp32") for name in named for i in INTERFACES)]
