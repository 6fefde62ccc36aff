# SPDX-License-Identifier: Apache-2.0
"""`padfree doctor --plan` repeats the check of a plan from its metadata; here the engines run in onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from padfree.builder import BuildError, build_engine
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine_check.again import repeat_check
from padfree.onnx_tools.operators import padfree_nodes
from padfree.runtime.plan_files import open_plan

from tests.support.cpu_engines import CpuEngine, use_cpu_engines
from tests.support.sequence_models import with_rows
from tests.support.tiny_folders import read, write_reference

Capture = pytest.CaptureFixture[str]
Change = Callable[[onnx.ModelProto], None]


class CpuSession:
    """A stand-in for Session; `change` is a change of the kernels since the plan was built."""

    change: Change | None = None

    def __init__(self, plan: Path, **_: Any) -> None:
        self.metadata, model = open_plan(plan), onnx.load_model_from_string(plan.read_bytes())
        if CpuSession.change is not None:
            CpuSession.change(model)
        self.backend = CpuEngine(model, self.metadata)

    def __enter__(self) -> CpuSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cpu_engines(monkeypatch)
    monkeypatch.setattr("padfree.runtime.Session", CpuSession)


def build(tmp_path: Path, interface: str, model: Any = DEMO_DATA / "bert_tiny.onnx") -> Path:
    plan = tmp_path / "model.plan"
    options: dict[str, Any] = {"max_batch": 8, "max_seq_len": 32, "timing_cache": None}
    build_engine(model, plan, interface=interface, precision="fp16", **options)
    return plan


@pytest.mark.parametrize("interface", ["packed", "padded", "varseqlen"])
def test_a_plan_is_right_where_it_was_built(interface: str, tmp_path: Path, capsys: Capture) -> None:
    plan = build(tmp_path, interface)
    assert main(["doctor", "--plan", str(plan)]) == 0
    said = capsys.readouterr().out
    assert "8 answers: 8 right, 0 wrong" in said
    assert " no " not in said.split("same bits")[1].split("answers:")[0], "the same library gives the same bits"


def test_rows_of_sequences_and_whole_numbers_are_kept(tmp_path: Path) -> None:
    plan = build(tmp_path, "packed", with_rows())
    with CpuSession(plan) as session:
        results = list(repeat_check(session.backend, session.metadata, "a plan"))  # type: ignore[arg-type]
    assert {item.output for item in results} >= {"row_id_out", "hidden"}
    assert all(item.is_right and item.same_bits for item in results)


def test_sequences_share_a_prefix_where_the_model_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = write_reference(read("qwen3"), tmp_path / "model"), tmp_path / "packed.onnx"
    options = ["--shared-prefixes", "--pooling", "lasttoken"]
    assert main(["optimize", str(folder), "-o", str(file), *options]) == 0

    def build_plan(name: str) -> Path:
        build_engine(file, tmp_path / name, max_batch=8, max_seq_len=90, timing_cache=None)
        return tmp_path / name

    with CpuSession(build_plan("right.plan")) as session:
        (batch,) = (item for item in session.metadata.raw["check"]["batches"] if "prefix" in item)
        assert (batch["seq_lens"], batch["prefix"]) == ([33, 1, 45, 45], "3 3 3 -1")
        results = list(repeat_check(session.backend, session.metadata, "a plan"))  # type: ignore[arg-type]
    assert "shared prefix" in {item.batch for item in results}
    assert all(item.is_right and item.same_bits for item in results)

    def no_prefix(model: onnx.ModelProto) -> None:
        """Attention that does not see what a sequence continues."""
        model.graph.initializer.append(numpy_helper.from_array(np.full(1, -1, np.int32), "none"))
        for node in padfree_nodes(model.graph):
            if node.op_type == "PadfreeAttention":
                node.input[:] = ["none" if name == "prefix" else name for name in node.input]

    use_cpu_engines(monkeypatch, no_prefix)
    with pytest.raises(BuildError, match=r"\(batch 'shared prefix'\).* was not written"):
        build_plan("wrong.plan")


def test_a_kernel_that_is_wrong_here(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def double_scale(model: onnx.ModelProto) -> None:
        node = [node for node in padfree_nodes(model.graph) if node.op_type == "PadfreeAttention"][-1]
        next(item for item in node.attribute if item.name == "scale").f *= 2

    plan = build(tmp_path, "packed")
    monkeypatch.setattr(CpuSession, "change", staticmethod(double_scale))
    assert main(["doctor", "--plan", str(plan)]) == 1
    assert "wrong" in capsys.readouterr().out


def test_plans_that_keep_nothing(tmp_path: Path, capsys: Capture) -> None:
    plan = build(tmp_path, "packed")
    sidecar = Path(f"{plan}.json")
    raw = json.loads(sidecar.read_text())
    del raw["check"]
    sidecar.write_text(json.dumps(raw))
    assert main(["doctor", "--plan", str(plan)]) == 1
    assert "keeps no answers" in capsys.readouterr().err
    assert main(["doctor", "--plan", str(plan), "--check"]) == 1
    assert "pass one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda check: check["batches"][0].pop("tokens"),
        lambda check: check["batches"][1].update(seq_lens=[3, 4]),
        lambda check: check["batches"][1]["tokens"].update(input_ids="1 two 3"),
        lambda check: check["batches"][2]["answers"]["last_hidden_state"].update(right=None),
        lambda check: check.update(batches=7, outputs=3),
    ],
)
def test_damaged_checks_are_told(damage: Callable[[Any], object], tmp_path: Path, capsys: Capture) -> None:
    plan = build(tmp_path, "packed")
    sidecar = Path(f"{plan}.json")
    raw = json.loads(sidecar.read_text())
    damage(raw["check"])
    sidecar.write_text(json.dumps(raw))
    assert main(["doctor", "--plan", str(plan)]) == 1
    assert "what it keeps of its check is damaged" in capsys.readouterr().err
    assert main(["inspect", str(plan), "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert ("is damaged" in shown) == (raw["check"]["outputs"] == 3)
    assert ("the engine's answers beside" in shown) == (raw["check"]["outputs"] != 3)
