# SPDX-License-Identifier: Apache-2.0
"""Bulk jobs, actors of Ray and padfree.torch refuse a library without the GPU's code, as sessions do.

The GPU is an H200 that lives on the host (fake_gpu.py); the library has code for 80 alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import onnx
import pytest
from padfree.runtime import SessionError, session
from padfree.runtime.gpu import plugin_library
from padfree.runtime.plan_files import sidecar_path
from padfree.runtime.texts import tokenizer_path

from tests.support.folders import TOKENIZER
from tests.support.libraries import write_library

REFUSAL = r"NVIDIA H200 \(compute capability 9\.0\) needs code for 90a, this library has code for 80 alone"
CONTENT = b"a plan that nothing has to read"
OTHER_MODEL = "the metadata belongs to another plan"  # the error for the fake engine, once the library has the code


def write_plan(model: Path, engine: dict[str, Any]) -> Path:
    """Writes a plan with padfree's layers beside a packed file, with the metadata of that file."""
    raw = json.loads(next(one.value for one in onnx.load(model).metadata_props if one.key == "padfree"))
    plan = model.with_suffix(".plan")
    tokenizer_path(plan).write_bytes(TOKENIZER.read_bytes())
    plan.write_bytes(CONTENT)
    results = {"plan_bytes": len(CONTENT), "plan_sha256": hashlib.sha256(CONTENT).hexdigest()}
    raw["engine"] = {**engine, **results, "plugin_layers": {"PadfreePool": 1}}
    sidecar_path(plan).write_text(json.dumps(raw), encoding="utf-8")
    return plan


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Installs a library without code for the GPU; the value records when it is loaded."""
    loaded: list[str] = []
    monkeypatch.setattr(plugin_library, "load", lambda: loaded.append("library"))
    monkeypatch.setattr(session, "import_tensorrt", lambda: None)
    monkeypatch.setenv("PADFREE_LIBRARY", str(write_library(tmp_path / "libpadfree.so", "80")))
    return loaded


@pytest.fixture
def plan(setup: Any, tmp_path: Path) -> Path:
    """A plan for sentence vectors."""
    pytest.importorskip("pyarrow")
    from tests.support.bulk_jobs import write_embedder

    return write_plan(write_embedder(tmp_path / "embedder.onnx"), setup.metadata.raw["engine"])


def spec_of(plan: Path, folder: Path) -> Any:
    """The specification that a job with this plan gives to its workers."""
    from padfree.bulk import Request, Running, embed

    reports: list[Any] = []

    def make(spec: Any) -> Any:
        reports.append(spec)
        raise InterruptedError

    inputs = folder / "in.txt"
    inputs.write_text("a text\n", encoding="utf-8")
    with pytest.raises(InterruptedError):
        embed(Request([str(inputs)], str(folder / "out"), plan), Running(), make)
    return reports[0]


def allow(folder: Path) -> None:
    """Gives the library the code that the GPU needs."""
    write_library(folder / "libpadfree.so", "80,90a")


def test_a_worker_of_a_bulk_job(loaded: list[str], plan: Path, tmp_path: Path) -> None:
    from padfree.bulk.workers.worker import Worker

    spec = spec_of(plan, tmp_path)
    with pytest.raises(SessionError, match=REFUSAL):
        Worker(spec)
    assert loaded == []
    allow(tmp_path)
    with pytest.raises(SessionError, match=OTHER_MODEL):
        Worker(spec)
    assert loaded == ["library"]


def test_an_actor_of_ray_answers_with_it(loaded: list[str], plan: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from padfree.bulk.workers.on_ray import _Actor

    actor = _Actor(spec_of(plan, tmp_path))
    for _ in range(2):  # the second time, too
        answer = actor.run(0)
        assert isinstance(answer, str)
        assert re.match(REFUSAL, answer)
    assert loaded == []
    allow(tmp_path)
    assert re.search(OTHER_MODEL, str(actor.run(0)))
    assert loaded == ["library"]


@pytest.mark.needs_torch
def test_a_module_of_pytorch(loaded: list[str], plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from padfree.torch import Module

    monkeypatch.setattr(Module, "device", torch.device("cuda"))
    module = Module(plan)
    ids = torch.ones(1, 3, dtype=torch.int64)
    with pytest.raises(SessionError, match=REFUSAL):
        module(input_ids=ids)
    assert loaded == []
    allow(tmp_path)
    with pytest.raises(SessionError, match=OTHER_MODEL):
        module(input_ids=ids)
    assert loaded == ["library"]
