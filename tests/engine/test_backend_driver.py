# SPDX-License-Identifier: Apache-2.0
"""libtriton_padfree.so under sanitizers, driven by a stand-in for Triton's core that enforces the core's rules.

tests/support/backend has the driver, the requests and the stand-in, which checks what becomes of each request.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.compiled_tokenizers import SMALL_TOKENIZER
from tests.support.native_triton import driver_sources, together, write_model
from tests.support.pages import ROOT

SUPPORT = ROOT / "tests" / "support"
KINDS = ("tokens", "texts", "both")
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
ENDED = re.compile(
    r"^(\d+) requests: (\d+) right, (\d+) refused, (\d+) cancelled, (\d+) failed, (\d+) unanswered, (\d+) left$", re.M
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=SANITIZERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver, a stand-in for an engine, and models."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++: apt-get install g++")
    found = tmp_path_factory.mktemp(f"driver-{request.param}")
    options = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", str(ROOT / "plugins")]
    options += ["-I", str(SUPPORT), f"-fsanitize={SANITIZERS[request.param]}", "-fno-sanitize-recover=all"]
    source = together(driver_sources(), found / "together.cpp")
    engine = [
        str(SUPPORT / "fake_engine.cpp"),
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        "-o",
        str(found / "engine.so"),
    ]
    for command in (engine, [str(source), "-ldl", "-o", str(found / "driver")]):
        subprocess.run([compiler, *options, *command], check=True, timeout=300)
    write_model(found, "tokens", plan="delay_us 20")
    write_model(found, "both", plan="delay_us 20")
    (found / "texts" / "1").mkdir(parents=True)
    for kind in ("texts", "both"):
        file = found / kind / "1" / "tokenizer.compiled.json"
        file.write_text(json.dumps(SMALL_TOKENIZER, ensure_ascii=False), "utf-8")
    return found


def drive(
    folder: Path, requests: int, instances: int, fail_every: int = 0, *, kind: str = "tokens", **environment: str
) -> tuple[int, str]:
    command = [
        folder / "driver",
        folder / "engine.so",
        folder / kind,
        str(requests),
        str(instances),
        str(fail_every),
        kind,
    ]
    found = {**os.environ, **environment}
    done = subprocess.run(command, env=found, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


def read_counts(status: int, shown: str) -> list[int]:
    """The numbers of all, failed and unanswered requests, after checking the other counts."""
    found = ENDED.search(shown)
    assert status == 0, shown[-4000:]
    assert found, shown[-4000:]
    total, right, refused, cancelled, failed, unanswered, left = map(int, found.groups())
    assert right + refused + cancelled + failed + unanswered == total
    assert left == 0
    assert min(right, refused, cancelled) > 0
    return [total, failed, unanswered]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instances", [1, 3])
def test_good_hostile_and_cancelled_requests(folder: Path, instances: int, kind: str) -> None:
    requests = 10_000 if "thread" in folder.name else 50_000  # ThreadSanitizer takes ten times as long
    total, failed, unanswered = read_counts(*drive(folder, requests, instances, kind=kind))
    assert total >= 0.99 * requests
    assert failed == unanswered == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_without_memory(folder: Path, kind: str) -> None:
    """Every 17th response or buffer is refused: its request fails, or stays unanswered if the error needs it, too."""
    _, failed, unanswered = read_counts(*drive(folder, 10_000, 3, fail_every=17, kind=kind))
    assert failed > 10 * unanswered


def test_instances_on_several_devices(folder: Path) -> None:
    """A plan is opened once on each device, for all instances there, and closed with the last of them."""
    status, shown = drive(folder, 2000, 5)
    read_counts(status, shown)
    assert sorted(re.findall(r"opened on device (-?\d+)", shown)) == ["0", "1"]
    assert shown.count("fake engine: closed") == 2
    assert "closed, 0 engines and 0 lanes live" in shown


def test_an_old_server_is_refused(folder: Path) -> None:
    status, shown = drive(folder, 10, 1, CORE_API_MINOR="15")
    assert status == 1
    assert "the server has backend API 1.15, allowed: 1.16 and newer minor versions; use a server from 23.10" in shown
