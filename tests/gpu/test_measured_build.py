# SPDX-License-Identifier: Apache-2.0
"""A build that measures: three engines and TensorRT's padded one are timed on the GPU, and the kept one is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from padfree.builder import build_engine
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.candidates import CHOICES
from padfree.builder.engine.engine_builder import EngineBuilder, TacticOptions
from padfree.builder.engine.phases import MEASURING

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> EngineBuilder:
    """One for all builds, which searches for no tactics: what TensorRT finds is not tested here, and takes minutes."""
    cache = tmp_path_factory.mktemp("measured") / "cache"
    return EngineBuilder(0, TacticOptions(optimization_level=0, timing_cache=cache), None)


@pytest.mark.parametrize("interface", ["packed", "padded", "varseqlen"])
def test_all_engines_are_timed_and_the_fastest_is_checked(
    interface: str, builder: EngineBuilder, tmp_path: Path
) -> None:
    builder.begin(None)
    metadata = build_engine(
        DEMO_DATA / "bert_tiny.onnx",
        tmp_path / "model.plan",
        interface=interface,
        precision="fp16",
        measure=True,
        max_batch=8,
        max_seq_len=128,
        builder=builder,
    )
    engine, measured = metadata["engine"], metadata["engine"]["measured"]
    assert [item.get("problem", "") for item in measured["engines"]] == [""] * len(CHOICES)
    assert [(item["linear"], item["norms"]) for item in measured["engines"]] == list(CHOICES)
    assert all(0 < ms < 100 for item in measured["engines"] for ms in item["ms"])
    kept = measured["engines"][measured["kept"]]
    assert (engine["linear"], engine["norms"]) == (kept["linear"], kept["norms"])
    assert 0 < measured["padded"]["short_ms"] < 100
    assert 0 < engine["build_seconds"][MEASURING] < 20
    assert metadata["check"]["outputs"]
