# SPDX-License-Identifier: Apache-2.0
"""Every family that is read from config.json and safetensors, as an engine, against transformers' answers per text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from padfree.builder import build_engine
from padfree.builder.engine.shared_builder import SharedBuilder
from padfree.builder.folders.source import opened
from padfree.runtime import Session

from tests.support import tiny_folders

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

FAMILIES = tiny_folders.families()
LARGEST = {"fp32": 5e-3, "fp16": 4e-2}
"""Largest error relative to an answer's norm: products in TF32; some thirty roundings to 11 bits at widths of 16."""
TYPES = [(family, precision) for family in FAMILIES for precision in LARGEST if (family, precision) != ("umt5", "fp16")]
"""umT5's attention has no scale: with random weights, a row of 5,000 is off by 4 % in half precision even on a CPU."""


@pytest.fixture(scope="module")
def builder() -> SharedBuilder:
    """One builder for all tests, as TensorRT's takes seconds to start."""
    return SharedBuilder()


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize(("family", "precision"), TYPES)
def test_engine(family: str, precision: str, interface: str, builder: SharedBuilder, tmp_path: Path) -> None:
    reference = tiny_folders.read(FAMILIES[family])
    folder = tiny_folders.write_reference(reference, tmp_path / "model")
    with opened(folder) as source:
        build_engine(
            source.path,
            tmp_path / "model.plan",
            interface=interface,
            precision=precision,
            max_batch=4,
            max_seq_len=16,
            builder=builder,
        )
    with Session(tmp_path / "model.plan") as session:
        request: dict[str, object] = {session.metadata.ids_input().name: tiny_folders.REQUESTS}
        if "token_type_ids" in {item.name for item in session.metadata.inputs}:
            request["token_type_ids"] = tiny_folders.TYPES
        found = session.run(request)
    right = dict(reference.outputs)
    if "scores" in found:  # folders with one label give it, as sentence-transformers does
        right = {"scores": tuple(1 / (1 + np.exp(-logits)) for logits in right.pop("logits")), **right}
    assert set(found) == set(right)
    for name, wanted in right.items():
        for row, exact in zip(found[name], wanted, strict=True):
            off = np.linalg.norm(np.asarray(row, np.float32) - exact) / np.linalg.norm(exact)
            assert off < LARGEST[precision], f"{name} is {off:.2g} off"
