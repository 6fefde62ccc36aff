# SPDX-License-Identifier: Apache-2.0
"""libpadfree_engine.so without a GPU: with stand-ins for the driver and TensorRT, and with the real TensorRT.

All of it is compiled with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native_headers import headers
from tests.support.native_triton import driver_sources, together, write_model
from tests.support.pages import ROOT

SUPPORT = ROOT / "tests" / "support"
SOURCES = sorted((ROOT / "plugins" / "engine").glob("*.cpp"))
PLAN = """ids in T 3
boxes in T 0 3
numbers in B 0
seq_lens in B 3
max_seqlen in S 3
hidden out T 0 5
vector out B 0 4
"""
DRIVEN = """input_ids in T 3
token_type_ids in T 3
seq_lens in B 3
hidden out T 0 2
pooled out B 0 3
"""
VERSIONS = {"10": "10.6.0", "11": "11.2.1"}


def compile_here(folder: Path, name: str, sources: list[Path], *options: str) -> Path:
    compiler, found = shutil.which("g++"), headers()
    if compiler is None or found is None:
        pytest.skip("needs g++, TensorRT's and CUDA's headers: apt-get install g++ cargo && pip install '.[dev]'")
    command = [compiler, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-pthread", *options]
    command += ["-I", str(ROOT / "plugins"), "-I", str(SUPPORT)]
    for include in found:
        command += ["-isystem", str(include)]
    file = folder / name
    subprocess.run(
        [*command, *map(str, sources), "-o", str(file), f"-Wl,-rpath,{folder}", "-ldl"], check=True, timeout=300
    )
    return file


# Without vptr: the stand-ins for TensorRT build their tables of virtual functions by hand.
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all")
SHARED = (*SANITIZED, "-shared", "-fvisibility=hidden")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the engine library, the stand-ins, and the programs that drive them."""
    folder = tmp_path_factory.mktemp("engine")
    stand_ins = SUPPORT / "engine"
    cuda = compile_here(folder, "libcuda.so.1", [stand_ins / "fake_cuda.cpp"], *SHARED, "-Wl,-soname,libcuda.so.1")
    for major in VERSIONS:
        name = f"libnvinfer.so.{major}"
        options = (*SHARED, f"-DSTAND_IN_MAJOR={major}", f"-Wl,-soname,{name}")
        compile_here(folder, name, [stand_ins / "fake_tensorrt.cpp", cuda], *options)
    compile_here(folder, "libpadfree_engine.so", [together(SOURCES, folder / "engine.cpp")], *SHARED)
    compile_here(folder, "lanes", [stand_ins / "lanes.cpp", cuda], *SANITIZED)
    (folder / "model.plan").write_text(PLAN, encoding="utf-8")
    return folder


def lanes(programs: Path, version: str, graphs: str, runs: int = 3000, **environment: str) -> tuple[int, str]:
    command = [
        programs / "lanes",
        programs / "libpadfree_engine.so",
        programs / "model.plan",
        version,
        graphs,
        str(runs),
    ]
    found = {**os.environ, "LD_LIBRARY_PATH": str(programs), **environment}
    done = subprocess.run(command, env=found, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS.values())
@pytest.mark.parametrize("graphs", ["on", "off"])
def test_all_runs_are_right(programs: Path, version: str, graphs: str) -> None:
    status, shown = lanes(programs, version, graphs)
    assert status == 0, shown
    found = re.search(r"^(\d+) runs, (\d+) launches of graphs, (\d+) left$", shown, re.M)
    assert found, shown
    launches, left = int(found[2]), int(found[3])
    assert launches > 500 if graphs == "on" else launches == 0
    assert left == 0


@pytest.mark.slow
def test_the_backend_with_the_engine_library(programs: Path, tmp_path: Path) -> None:
    """The whole native backend: requests as from Triton's core, with stand-ins for two GPUs and TensorRT."""
    driver = compile_here(programs, "driver", [together(driver_sources(), programs / "driver.cpp")], *SANITIZED)
    model = write_model(tmp_path, "driven", plan=DRIVEN)
    command = [driver, programs / "libpadfree_engine.so", model, "20000", "4", "0", "tokens"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(programs)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"^20\d+ requests: 1\d+ right, .* 0 failed, 0 unanswered, 0 left$", done.stdout, re.M), done.stdout
    environment["FAKE_CUDA_GPUS"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "there is no GPU 1, this machine has 1; correct gpus in config.pbtxt's instance_group" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "environment", "message"),
    [
        (
            "10.5.0",
            {},
            "the plan was built by TensorRT 10.5.0, and the server has 10.6.0; plans run only in the version",
        ),
        ("9.3.0", {}, r"the plan was built by TensorRT 9.3.0, and the server has none \(libnvinfer.so.9: cannot open"),
        ("10.6.0", {"FAKE_CUDA_BROKEN": "1"}, "the CUDA driver does not work"),
    ],
)
def test_another_version_or_no_gpu_is_refused(
    programs: Path, version: str, environment: dict[str, str], message: str
) -> None:
    status, shown = lanes(programs, version, "on", **environment)
    assert status == 1, shown
    assert re.search(message, shown), shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (PLAN.replace("hidden", "other"), "the engine has no tensor 'hidden' as its metadata describe it"),
        (PLAN.replace("boxes in T 0", "boxes in T 3"), "the engine has no tensor 'boxes' as its metadata describe it"),
        (PLAN + "more out B 0\n", "the engine has 8 tensors, its metadata 7"),
        (PLAN.replace("T 0 5", "T 0 6"), "output 'hidden' has another shape than its metadata say"),
        ("", "cannot be read"),
        ("damaged\n", "TensorRT cannot load it"),
    ],
)
def test_a_plan_that_is_not_its_metadata_s(programs: Path, changed: str, message: str) -> None:
    (programs / "model.plan").write_text(changed, encoding="utf-8")
    try:
        status, shown = lanes(programs, "10.6.0", "on")
    finally:
        (programs / "model.plan").write_text(PLAN, encoding="utf-8")
    assert status == 1, shown
    assert message in shown


@pytest.mark.needs_tensorrt
def test_the_real_tensorrt_calls_the_logger(tmp_path: Path) -> None:
    """Without a GPU, the library asks for a runtime, and TensorRT says why there is none."""
    import tensorrt

    libraries = [
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libnvinfer.so" in line
    ]
    probe = compile_here(tmp_path, "probe", [SUPPORT / "engine" / "probe.cpp", ROOT / "plugins/engine/tensorrt.cpp"])
    plan = tmp_path / "model.plan"
    plan.write_bytes(b"no plan")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(libraries[0]).parent)}
    version = ".".join(tensorrt.__version__.split(".")[:3])
    done = subprocess.run([probe, version, plan], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    first, reason = done.stdout.splitlines()[:2]
    assert first == version
    # With a GPU it gets further and refuses the file.
    assert re.search(r"TensorRT cannot (start|load it) \(.*(CUDA|magic|header|erialization|plan)", reason), reason
