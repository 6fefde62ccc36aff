# SPDX-License-Identifier: Apache-2.0
"""The exported families: what each file is, batches for it, and a comparison of original and rewritten model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto, helper
from padfree.onnx_tools import CoverageReport, RewriteResult, load_model
from padfree.onnx_tools.verification.agreement import measure

from .exports import assert_valid, metadata_of, session
from .messages import widen

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FOLDER, OPTIMUM_FOLDER = FIXTURES / "families", FIXTURES / "optimum"
VOCABULARY, SPECIAL_IDS = 64, 3  # ids below SPECIAL_IDS are padding and the like, which do not occur in texts
LENGTHS, LENGTH = (9, 1, 4, 17, 6), 17
# Largest difference relative to a column's root mean square: sums in another order; in fp16 files the models round in
# different places, and two layers of scores with a deviation of 3 amplify that.
TOLERANCE = {"fp32": 1e-4, "fp16": 4e-2}
# How many of two attentions PadfreeAttention computes in the padded interface, where masks may have holes, and why
# the others stay padded.
BY_DISTANCE = {
    "deberta_v2": (0, "has a bias by distance: under a mask with holes"),
    "deberta_v3": (0, "has a bias by distance: under a mask with holes"),
    "modernbert": (1, "has a window: under a mask with holes"),  # every other layer
    "mpnet": (0, "has a bias by distance: under a mask with holes"),
    "t5": (0, "has a bias by distance: under a mask with holes"),
}


@dataclass(frozen=True)
class Case:
    """One file, as make_families.py or make_optimum.py describes it; `level` is its level of optimisation."""

    name: str
    family: str
    head: str
    exporter: str
    attention: str
    opset: int
    dtype: str
    mask: str
    activation: str
    token_types: bool
    static: str
    external: bool
    level: str = ""

    @property
    def path(self) -> Path:
        return (OPTIMUM_FOLDER if self.exporter == "optimum" else FOLDER) / f"{self.name}.onnx"


def partly_packed(interface: str) -> dict[str, tuple[int, str]]:
    """Per family, how many of two attentions are packed, and why the others are not; empty if all are packed."""
    return {} if interface == "packed" else BY_DISTANCE


def all_cases() -> list[Case]:
    return _cases(FOLDER)


def optimum_cases() -> list[Case]:
    return _cases(OPTIMUM_FOLDER)


def _cases(folder: Path) -> list[Case]:
    return [Case(**item) for item in json.loads((folder / "cases.json").read_text())]


def masks(interface: str) -> dict[str, np.ndarray]:
    slots, lengths = np.arange(LENGTH), np.asarray(LENGTHS)[:, None]
    results = {"prefix": slots < lengths}
    if interface == "padded":
        holes = np.random.default_rng(3).random((len(LENGTHS), LENGTH)) < 0.6
        holes[:, 0] = True
        zero = results["prefix"].copy()
        zero[1] = False
        results |= {"left": slots >= LENGTH - lengths, "holes": holes, "full": np.ones_like(holes), "zero row": zero}
    return results


def feeds_for(original: ModelProto, mask: np.ndarray, kept_from: int) -> dict[str, np.ndarray]:
    """Random ids everywhere: any id in masked slots, those from `kept_from` on in kept ones."""
    rng = np.random.default_rng(7)
    feeds = {}
    for value in original.graph.input:
        high = 2 if "type" in value.name else VOCABULARY
        ids = rng.integers(0, high, mask.shape)
        if high == VOCABULARY:
            ids = np.where(mask, np.maximum(ids, kept_from), ids)
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = (mask if "mask" in value.name else ids).astype(dtype)
    return feeds


def assert_same(case: Case, interface: str, result: RewriteResult) -> CoverageReport:
    """Compares all kept tokens of the rewritten file, or all sequences whose first slot is kept.

    Fused float16 operators have no kernels on a CPU, so that optimised files are compared in float32.
    """
    original = load_model(case.path)
    assert_valid(result.model)
    metadata = metadata_of(result)
    before, after = session(widen(original) if case.level else original), session(result.model)
    names = [output["name"] for output in metadata["outputs"]]
    for name, mask in masks(interface).items():
        if result.report.right_padded_only and name in ("left", "holes"):
            continue
        if result.report.contiguous_because and name == "holes":
            continue
        feeds = feeds_for(original, mask, SPECIAL_IDS if interface == "packed" else 0)
        requests: Mapping[str, np.ndarray] = feeds
        if interface == "packed":
            inputs = {item["name"]: item["role"] for item in metadata["inputs"]}
            requests = {key: feeds[key][mask].astype(np.int32) for key, role in inputs.items() if role == "tokens"}
            requests = {**requests, "seq_lens": mask.sum(1).astype(np.int32)}
            if "max_seqlen" in inputs:
                requests = {**requests, "max_seqlen": np.zeros(LENGTH, np.int32)}
        for output, a, b in zip(metadata["outputs"], before.run(names, feeds), after.run(names, requests), strict=True):
            if output["layout"] == "per_sequence":
                a, b = a[mask[:, 0]], b[mask[:, 0]]
            else:
                a, b = a[mask], b if output["layout"] == "packed" else b[mask]
            assert a.shape == b.shape, (name, output)
            rows = [item.reshape(len(item), -1) for item in (a, b)]
            error = float(measure(rows[:1]).differences(*rows).max())
            assert error <= TOLERANCE[case.dtype], f"{case.name}, {interface}, mask '{name}', {output}: {error:.1e}"
    return result.report
