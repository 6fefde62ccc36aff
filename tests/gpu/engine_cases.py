# SPDX-License-Identifier: Apache-2.0
"""The engines of the matrix: which files there are, and what their inputs are."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto, ValueInfoProto
from padfree.onnx_tools import load_model

from tests.support import exports, exports_table, families

INTERFACES, PRECISIONS = ("packed", "padded"), ("fp32", "fp16", "bf16")
VARSEQLEN = "varseqlen"  # the packed interface under the inputs of NVIDIA's plugins, once a family
ROOT = Path(__file__).resolve().parents[2]
MADE = {"wide": "tests.fixtures.make_wide", "forms": "tests.fixtures.make_forms"}
"""Sources whose files a module exports to FOLDER, beside their list, FOLDER/SOURCE.json."""


@dataclass(frozen=True)
class Entry:
    """An engine.

    `source`: "families" (tiny ones), "wide" (their kernels are those of real models), "forms" (other models of that
    width: decoders, embeddings as the input, what other frameworks write) or "exports".
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
        """The engine that a record is of."""
        return cls(*(str(record[field.name]) for field in fields(cls)))

    def load(self, folder: Path) -> tuple[ModelProto, list[exports.Input]]:
        """The original file, and what its inputs are."""
        if self.source == "exports":
            return exports.load(self.name), exports_table.inputs_of(self.name)
        model = load_model((folder if self.source in MADE else families.FOLDER) / f"{self.name}.onnx")
        return model, [_input(value) for value in model.graph.input]


def _input(value: ValueInfoProto) -> exports.Input:
    name = value.name
    if value.type.tensor_type.elem_type == TensorProto.FLOAT:
        return exports.Input(name, "embeddings", high=value.type.tensor_type.shape.dim[-1].dim_value)
    kind = "mask" if "mask" in name else "types" if "type" in name else "ids"
    return exports.Input(name, kind, low=families.SPECIAL_IDS if kind == "ids" else 0, high=families.VOCABULARY)


def prepare(folder: Path, patterns: Sequence[str]) -> None:
    """Exports the wide models and forms, where PyTorch and transformers are there; once, and what patterns may want."""
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
    """All engines, the slow ones first. Tiny ones come in half precision for one file a family."""
    found = list[Entry]()
    for source in MADE:
        listed = folder / f"{source}.json"
        names = json.loads(listed.read_text()) if listed.exists() else []
        found += [Entry(source, name, i, p) for name in names for p in PRECISIONS for i in INTERFACES]
    seen = set[str]()
    for case in families.all_cases():
        if case.static or case.dtype != "fp32" or case.activation:
            continue  # files of fixed sizes cannot be run on a sequence alone; forms differ in the original alone
        precisions = PRECISIONS
        if case.family in seen:
            precisions = PRECISIONS[:1]
        else:
            found.append(Entry("families", case.name, VARSEQLEN, "fp16"))
        seen.add(case.family)
        found += [Entry("families", case.name, i, p) for p in precisions for i in INTERFACES]
    named = [name for name in exports.names() if exports.inputs_of(name)]
    return [*found, *(Entry("exports", name, i, "fp32") for name in named for i in INTERFACES)]
