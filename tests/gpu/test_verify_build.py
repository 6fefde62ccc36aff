# SPDX-License-Identifier: Apache-2.0
"""Builds check their engines on the GPU: right ones record their errors, one with a wrong operator is not written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from padfree.builder import BuildError, build_engine
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.engine_builder import BuiltEngine, EngineBuilder
from padfree.builder.engine.phases import COMPARING, REFERENCE
from padfree.builder.engine_check.batches import LONG
from padfree.onnx_tools.operators import padfree_nodes
from padfree.onnx_tools.synthetic import bert_model

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

EXPORTED = DEMO_DATA / "bert_tiny.onnx"
LIMITS: dict[str, Any] = {"max_batch": 8, "max_seq_len": 128}
# Differences from onnxruntime in float32: sums in another order, and roundings to 11 and 8 bits in every layer.
WORST = {"fp32": 1e-3, "fp16": 3e-2, "bf16": 2e-1}
MOST_SECONDS = 3.0
"""What the check may add to a build of BERT-base."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "timing.cache"


@pytest.mark.parametrize("precision", WORST)
@pytest.mark.parametrize("interface", ["packed", "padded", "varseqlen"])
def test_right_engines_are_written_with_their_errors(
    interface: str, precision: str, tmp_path: Path, cache: Path
) -> None:
    plan = tmp_path / "model.plan"
    build_engine(EXPORTED, plan, interface=interface, precision=precision, timing_cache=cache, **LIMITS)
    check = json.loads(Path(f"{plan}.json").read_text())["check"]
    assert [batch["name"] for batch in check["batches"]][:3] == ["one token", "mixed", "longest"]
    assert set(check["outputs"]) == {"last_hidden_state", "pooler_output"}
    for found in check["outputs"].values():
        assert 0 < found["relative"] < WORST[precision]
        assert found["cosine"] > 1 - WORST[precision] ** 2
    assert main(["doctor", "--plan", str(plan)]) == 0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_with_a_wrong_operator_is_not_written(
    precision: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if attention's kernel were broken: in TensorRT's graph, the last layer's scale of scores is doubled."""
    build = EngineBuilder.build

    def build_wrong(
        self: EngineBuilder, model: onnx.ModelProto, ranges: Any, *, content: Any = None, **_: Any
    ) -> BuiltEngine:
        whole = onnx.ModelProto()
        whole.CopyFrom(model if content is None else onnx.load_model_from_string(bytes(content)))
        attention = [node for node in padfree_nodes(whole.graph) if node.op_type == "PadfreeAttention"][-1]
        next(item for item in attention.attribute if item.name == "scale").f *= 2
        return build(self, whole, ranges)

    monkeypatch.setattr(EngineBuilder, "build", build_wrong)
    with pytest.raises(BuildError, match=r"other answers than .*model\.plan was not written.*--runners trt --bisect"):
        build_engine(EXPORTED, tmp_path / "model.plan", precision=precision, timing_cache=cache, **LIMITS)
    assert list(tmp_path.iterdir()) == []
    build_engine(EXPORTED, tmp_path / "model.plan", precision=precision, verify=False, timing_cache=cache, **LIMITS)
    assert "check" not in json.loads((tmp_path / "model.plan.json").read_text())


@pytest.mark.parametrize("layer", [0, 3, 5])
def test_a_gemm_that_is_off_by_a_fifth_is_found_in_bf16(
    layer: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the kernel of one product in one layer were broken: TensorRT gets its weights multiplied by 1.2."""
    model, build = tmp_path / "model.onnx", EngineBuilder.build
    onnx.save_model(bert_model(6, 256, 4, 1024, vocab_size=1000, max_positions=512), str(model))

    def build_wrong(
        self: EngineBuilder, given: onnx.ModelProto, ranges: Any, *, content: Any = None, **_: Any
    ) -> BuiltEngine:
        whole = onnx.ModelProto()
        whole.CopyFrom(given if content is None else onnx.load_model_from_string(bytes(content)))
        name = f"encoder.layer.{layer}.output.dense.MatMul"
        weight = next(item for item in whole.graph.initializer if item.name.startswith(name))
        values = numpy_helper.to_array(weight)
        wrong = (values.astype(np.float32) * 1.2).astype(values.dtype)
        weight.CopyFrom(numpy_helper.from_array(wrong, weight.name))
        return build(self, whole, ranges)

    options: dict[str, Any] = {"precision": "bf16", "timing_cache": cache, **LIMITS}
    metadata = build_engine(model, tmp_path / "right.plan", **options)
    allowed = metadata["check"]["outputs"]["last_hidden_state"]["allowed"]
    assert allowed["typical"] < allowed["relative"] / 2
    monkeypatch.setattr(EngineBuilder, "build", build_wrong)
    with pytest.raises(BuildError, match=r"other answers than .*wrong\.plan was not written"):
        build_engine(model, tmp_path / "wrong.plan", **options)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_long_sequences_are_checked(precision: str, tmp_path: Path, cache: Path) -> None:
    """If the profile allows it, one sequence has more than 512 tokens, as attention has other kernels for those."""
    model = tmp_path / "model.onnx"
    onnx.save_model(bert_model(2, 256, 4, 1024, vocab_size=1000, max_positions=2048), str(model))
    options: dict[str, Any] = {"max_batch": 8, "max_seq_len": 2048, "timing_cache": cache}
    metadata = build_engine(model, tmp_path / "model.plan", precision=precision, **options)
    lengths = {batch["name"]: max(batch["seq_lens"]) for batch in metadata["check"]["batches"]}
    assert lengths["longest"] == 512
    assert lengths["long"] == LONG
    assert main(["doctor", "--plan", str(tmp_path / "model.plan")]) == 0


def test_fp8_is_compared_with_its_own_file(tmp_path: Path, cache: Path) -> None:
    model, ids, plan = (tmp_path / name for name in ("model.onnx", "ids.jsonl", "model.plan"))
    onnx.save_model(bert_model(3, 256, 4, 1024, 1000, 512), str(model))
    rng = np.random.default_rng(0)
    ids.write_text("".join(f"{json.dumps(rng.integers(0, 1000, length).tolist())}\n" for length in (400, 200, 30)))
    command = ["build", str(model), "-o", str(plan), "--precision", "fp8", "--calibrate", str(ids), "--max-batch", "8"]
    assert main([*command, "--timing-cache", str(cache)]) == 0
    check = json.loads((tmp_path / "model.plan.json").read_text())["check"]
    assert check["reference"].startswith("the file in e4m3")
    assert check["outputs"]["last_hidden_state"]["cosine"] > 0.99


def test_a_check_of_bert_base_takes_little_time(tmp_path: Path, cache: Path) -> None:
    """The expected answers are computed while TensorRT builds, so that only the engine's own runs take extra time."""
    model = tmp_path / "model.onnx"
    onnx.save_model(bert_model(), str(model))
    metadata = build_engine(model, tmp_path / "model.plan", precision="fp16", timing_cache=cache, max_seq_len=512)
    seconds = metadata["engine"]["build_seconds"]
    assert seconds[REFERENCE] + seconds[COMPARING] < MOST_SECONDS, seconds
