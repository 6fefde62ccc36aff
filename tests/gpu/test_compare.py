# SPDX-License-Identifier: Apache-2.0
"""`padfree compare` with engines: packed and padded, left padding and holes, and an engine with a planted error."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.build import build_engine
from padfree.onnx_tools import rewrite, save_model
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime.gpu.plugin_library import find

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

MODEL = DEMO_DATA / "bert_tiny.onnx"
LENGTH = ["--max-seq-len", "64"]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_engines_agree_with_the_original(precision: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    runners = ["--runners", "onnxrt-packed,trt,trt-padded", "--precision", precision]
    assert main(["compare", str(MODEL), *runners, *LENGTH, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert [item["name"].partition(":")[0] for item in report["runners"]] == ["onnxrt-packed", "trt", "trt-padded"]


def test_padded_engines_take_every_mask(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    options = ["--runners", "trt", "--precision", "fp16", "--interface", "padded"]
    assert main(["compare", str(MODEL), *options, *LENGTH, "--json", str(path)]) == 0
    masks = {item["mask"] for item in json.loads(path.read_text())["batches"]}
    assert masks == {"prefix", "left padding", "holes"}


def test_what_overflows_stays_float32_and_the_engine_agrees(tmp_path: Path) -> None:
    model, path = bert_model(2, 64, 2, 128, vocab_size=60, max_positions=48), tmp_path / "report.json"
    for name, factor in (("intermediate.dense", 3e4), ("output.dense", 1 / 3e4)):
        weight = next(item for item in model.graph.initializer if item.name == f"encoder.layer.1.{name}.MatMul")
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
    save_model(model, tmp_path / "model.onnx")
    options = ["--runners", "onnxrt-packed,trt", "--precision", "fp16", "--bisect", "--max-seq-len", "48"]
    assert main(["compare", str(tmp_path / "model.onnx"), *options, "--json", str(path)]) == 0
    for runner in json.loads(path.read_text())["runners"]:
        trace = runner["bisection"]["trace"]
        assert max(item["wanted"]["high"] for item in trace) > 65504
        assert not any(item["found"]["not_finite"] for item in trace)


def test_polygraphys_own_command_line_loads_the_plugins(tmp_path: Path) -> None:
    """Runs commands.sh with its last command, which is for TensorRT, and with the library's path on this machine."""
    folder = tmp_path / "polygraphy"
    assert main(["compare", str(MODEL), "--max-seq-len", "16", "--emit-polygraphy", str(folder)]) == 0
    text = (folder / "commands.sh").read_text("utf-8").replace("# polygraphy run", "polygraphy run")
    text = text.replace("libpadfree_register.so", str(find().with_name("libpadfree_register.so")))
    program = "from polygraphy.tools import main; raise SystemExit(main())"
    text = f"polygraphy() {{ {shlex.quote(sys.executable)} -c '{program}' \"$@\"; }}\n{text}"
    script = folder / "with_tensorrt.sh"
    script.write_text(text, "utf-8")
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED | Runtime") == 3


def test_a_planted_error_in_an_engine_is_named(tmp_path: Path) -> None:
    model = rewrite(MODEL, precision="fp16").model
    embedding = next(node for node in model.graph.node if node.op_type == "PadfreeEmbedding")
    next(item for item in embedding.attribute if item.name == "position_offset").i = 1
    plan, path = tmp_path / "model.plan", tmp_path / "report.json"
    build_engine(model, plan, max_batch=8, max_seq_len=64)
    assert main(["compare", str(MODEL), str(plan), *LENGTH, "--json", str(path)]) == 1
    (runner,) = json.loads(path.read_text())["runners"]
    assert any("positions are shifted by 1" in cause for cause in runner["causes"])


def test_bisecting_an_engine_finds_the_node(tmp_path: Path) -> None:
    model = rewrite(MODEL, precision="fp16").model
    attention = [node for node in model.graph.node if node.op_type == "PadfreeAttention"][-1]
    scale = next(item for item in attention.attribute if item.name == "scale")
    scale.f *= 2
    packed, path = tmp_path / "packed.onnx", tmp_path / "report.json"
    save_model(model, packed)
    options = ["--runners", "trt", "--bisect", *LENGTH, "--json", str(path)]
    assert main(["compare", str(MODEL), str(packed), *options]) == 1
    (runner,) = json.loads(path.read_text())["runners"]
    assert runner["bisection"]["first"]["operator"] == "PadfreeAttention"
    scale.f /= 2
    save_model(model, packed)
    assert main(["compare", str(MODEL), str(packed), *options]) == 0
    (runner,) = json.loads(path.read_text())["runners"]
    assert runner["bisection"]["first"] is None
    assert len(runner["bisection"]["trace"]) > 5
