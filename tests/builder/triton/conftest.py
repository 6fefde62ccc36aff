# SPDX-License-Identifier: Apache-2.0
"""Plans as `padfree build` leaves them, but for their content, and libraries beside one another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PlanWriter = Callable[..., Path]
PROFILE = {"min_tokens": 1, "opt_tokens": 60, "max_tokens": 100, "max_batch": 12, "max_seq_len": 16}
LIBRARIES = ("libpadfree.so", "libpadfree_register.so", "libpadfree_triton_batching.so")


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with padfree's libraries, which is where padfree finds them."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for name in LIBRARIES:
        (folder / name).write_bytes(name.encode())
    monkeypatch.setenv("PADFREE_LIBRARY", str(folder / "libpadfree.so"))
    return folder


@pytest.fixture
def plan(tmp_path: Path, packed_metadata: dict[str, Any], libraries: Path) -> PlanWriter:
    """Writes model.plan and model.plan.json: by default a packed plan of TensorRT 10.6.0 with PROFILE."""
    assert libraries.is_dir()

    def write(*, tensorrt: str = "10.6.0", profile: dict[str, int] | None = None, **changes: Any) -> Path:
        content = b"a serialised engine"
        engine = {
            "tensorrt": tensorrt,
            "gpu_name": "NVIDIA H200",
            "compute_capability": "9.0",
            "profile": {**PROFILE, **(profile or {})},
            "plan_bytes": len(content),
            "plan_sha256": hashlib.sha256(content).hexdigest(),
            "plugin_layers": {},
        }
        path = tmp_path / "model.plan"
        path.write_bytes(content)
        path.with_name("model.plan.json").write_text(json.dumps({**packed_metadata, **changes, "engine": engine}))
        return path

    return write
