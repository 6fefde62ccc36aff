# SPDX-License-Identifier: Apache-2.0
"""Nothing is reported to anybody: onnxruntime's packages would report sessions to their vendor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

VARIABLE = "ORT_DISABLE_TELEMETRY"
UNASKED = {VARIABLE, "CI", "GITHUB_ACTIONS", "XDG_CACHE_HOME"}
"""Variables that would turn the reports off by themselves, or put them elsewhere."""
RUN = "import sys; from padfree.runtime import Session; Session(sys.argv[1]).close()"


def test_a_session_leaves_no_reports(packed_model: Callable[..., Path], tmp_path: Path) -> None:
    model, home = packed_model(), tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in UNASKED}
    environment |= {"HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-B", "-c", RUN, str(model)], check=True, env=environment, timeout=120)
    assert [str(path.relative_to(home)) for path in home.rglob("*")] == []


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_whoever_sets_the_variable_decides(wanted: str) -> None:
    code = f"import os, padfree; print(os.environ[{VARIABLE!r}])"
    environment = {**os.environ, VARIABLE: wanted, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == f"{wanted}\n"
