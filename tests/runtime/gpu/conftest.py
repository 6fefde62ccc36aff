# SPDX-License-Identifier: Apache-2.0
"""The TensorRT side of the runtime on a machine without a GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.runtime.backend import RunOptions
from padfree.runtime.plan_files import parse_metadata

from . import fake_gpu

REBUILT = (
    *(
        "gpu.arena",
        "gpu.results",
        "gpu.engine",
        "gpu.staging",
        "gpu.hand_out",
        "gpu.graph_runs",
        "gpu.lane",
        "gpu.prepared_run",
        "gpu.tensorrt_backend",
    ),
    "tensorrt_timing",
)


class Setup:
    """A machine with an engine; tests change its parts before they open the backend."""

    def __init__(self, metadata: dict[str, Any], plan: Path) -> None:
        self.machine = fake_gpu.Machine()
        self.cuda = fake_gpu.cuda_module(self.machine)
        self.memory = fake_gpu.memory_module(self.machine)
        self.engine: fake_gpu.Engine | None = fake_gpu.Engine(self.machine, self.cuda.Stream.recordings)
        self.metadata = parse_metadata(metadata, "test")
        self.plan = plan
        self.module: Any = None

    def open(self, device: int = 0, **options: Any) -> Any:
        """Opens a TensorRTBackend on a GPU, with these RunOptions."""
        return self.module.TensorRTBackend(self.plan, self.metadata, device=device, options=RunOptions(**options))


@pytest.fixture
def setup(packed_metadata: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    """The runtime's modules, with a GPU and a TensorRT that live on the host."""
    engine = {
        "tensorrt": "10.6.0",
        "gpu_name": fake_gpu.GPU.name,
        "compute_capability": "9.0",
        "profile": {
            "min_tokens": 1,
            "opt_tokens": 50,
            "max_tokens": fake_gpu.MAX_TOKENS,
            "max_batch": 12,
            "max_seq_len": 16,
        },
        "plan_bytes": 0,
        "plan_sha256": "0" * 64,
        "plugin_layers": {},
    }
    plan = tmp_path / "model.plan"
    plan.touch()
    result = Setup({**packed_metadata, "engine": engine}, plan)
    names = [f"padfree.runtime.{name}" for name in REBUILT]
    before = {name: sys.modules.pop(name, None) for name in names}
    monkeypatch.setitem(sys.modules, "padfree.runtime.gpu.cuda", result.cuda)
    monkeypatch.setitem(sys.modules, "padfree.runtime.gpu.cuda_memory", result.memory)
    result.module = importlib.import_module("padfree.runtime.gpu.tensorrt_backend")
    loaded = sys.modules["padfree.runtime.gpu.engine"]
    monkeypatch.setattr(loaded, "import_tensorrt", lambda: fake_gpu.tensorrt_module(lambda: result.engine))
    monkeypatch.setattr(
        loaded, "shared_logger", lambda _trt: SimpleNamespace(errors=["the newest error"], forget=lambda: None)
    )
    yield result
    for name in names:
        sys.modules.pop(name, None)
        if before[name] is not None:
            sys.modules[name] = before[name]
