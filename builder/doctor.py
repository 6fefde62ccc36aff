# SPDX-License-Identifier: Apache-2.0
"""What works on this machine and what to do about what does not; `padfree doctor` prints it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from padfree.contract.installation import install_command
from padfree.runtime import SessionError, word_table
from padfree.runtime.gpu import Device, device_code, import_tensorrt, plugin_library

from .bench.environment import run
from .gpu_files import no_gpu

FindingState = Literal["ok", "missing", "problem"]

ENGINES = "build and run engines"
ENGINE_PARTS = ("gpu", "driver", "tensorrt", "library", "registration")
"""The use that needs a GPU, its driver, TensorRT and the plugin library."""
NVIDIA_SMI_TIMEOUT_S = 20
OLDEST_DRIVERS = MappingProxyType({12: "525 or newer (570 for Blackwell)", 13: "580 or newer"})
"""The oldest usable drivers for Linux, by the major version of the CUDA toolkit that compiled the library."""
HEADER_FOLDERS = ("/usr/include", "/usr/local/include", "/usr/local/tensorrt/include", "/opt/tensorrt/include")
NOT_FROM_HERE = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
"""With `-c`, Python imports from the current folder first, where a user's own numpy.py may lie. `-I` would drop
PYTHONPATH too, and `-P` exists only since Python 3.11."""
TENSORRT_SMOKE_TEST = (
    "import tensorrt as trt; logger = trt.Logger(trt.Logger.ERROR); "
    "assert trt.Builder(logger) is not None; print(trt.__version__)"
)


@dataclass(frozen=True)
class Finding:
    """The result of one check. "missing": absent, and optional; "problem": present, and does not work."""

    name: str
    state: FindingState
    detail: str
    next_step: str = ""


def diagnose() -> list[Finding]:
    """Looks at everything; never raises, changes nothing."""
    return [
        find_python_packages(),
        find_gpu(),
        find_driver(),
        find_tensorrt(),
        find_library(),
        find_registration(),
        find_word_table(),
        *find_build_tools(),
    ]


def capabilities(findings: list[Finding]) -> dict[str, bool]:
    """What can be done here: each of the command's uses, and whether all that it needs is there."""
    ok = {finding.name: finding.state == "ok" for finding in findings}
    return {
        "optimize and inspect models": ok["python"],
        "run rewritten models on the CPU": ok["python"],
        ENGINES: all(ok[name] for name in ENGINE_PARTS),
        "compile the plugin library": all(ok[name] for name in ("compiler", "nvcc", "headers")),
    }


def find_python_packages() -> Finding:
    """The packages that every use needs."""
    names = ("numpy", "onnx", "onnx_graphsurgeon", "onnxruntime", "tokenizers", "rich", "polygraphy", "jinja2")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        return Finding("python", "problem", f"cannot import {', '.join(missing)}", "pip install padfree again")
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", f"Python {version}, onnxruntime {_version('onnxruntime')}, onnx {_version('onnx')}")


def find_gpu() -> Finding:
    """The GPUs: through CUDA, or through nvidia-smi where cuda-bindings is missing."""
    step = "engines need an NVIDIA GPU of compute capability 8.0 or newer; rewritten models run on the CPU"
    try:
        cuda = importlib.import_module("padfree.runtime.gpu.cuda")
    except SessionError as error:
        seen = _nvidia_smi("name,compute_cap")
        if seen:
            return Finding("gpu", "problem", f"{seen}, but {error}", install_command("trt"))
        if no_gpu():
            return Finding("gpu", "missing", no_gpu(), step)
        return Finding("gpu", "missing", str(error).partition(";")[0], install_command("trt"))
    count = cuda.device_count()
    if not count:
        seen, advice = _nvidia_smi("name,compute_cap"), "check CUDA_VISIBLE_DEVICES and the driver"
        if seen:
            return Finding("gpu", "problem", f"{seen}, but CUDA cannot use it", advice)
        return Finding("gpu", "missing", "no GPU that CUDA can use", step)
    try:
        device = cuda.open_device(0)
    except SessionError as error:
        return Finding("gpu", "problem", str(error), step)
    return Finding("gpu", "ok", f"{count} x {device.name}, compute capability {device.compute_capability}")


def find_driver() -> Finding:
    """The driver's CUDA version against the one that the library was built with."""
    try:
        cuda = importlib.import_module("padfree.runtime.gpu.cuda")
        newest = cuda.driver_version()
    except SessionError as error:
        step = f"install NVIDIA's driver, and {install_command('trt')}"
        return Finding("driver", "missing", str(error).partition(";")[0], step)
    if not newest:
        return Finding("driver", "missing", "no NVIDIA driver", "install NVIDIA's driver to run engines")
    driver_version = f"{newest // 1000}.{newest % 1000 // 10}"
    detail = f"driver {_nvidia_smi('driver_version') or 'of unknown version'}, CUDA up to {driver_version}"
    build_version = str(plugin_library.read_build_info().get("cuda_version", ""))
    if not build_version:
        return Finding("driver", "ok", detail)
    major = int(build_version.split(".")[0])
    needed_driver = OLDEST_DRIVERS.get(major, f"that knows CUDA {major}")
    detail += f"; the plugin library was built with CUDA {build_version}, which needs driver {needed_driver}"
    if major > newest // 1000:
        own = newest // 1000
        step = (
            f"install driver {needed_driver}; or a toolkit of CUDA {own} (12.8 or newer; from 12.4 on for GPUs that "
            f"are neither Hopper nor Blackwell), and padfree with its nvcc: CUDACXX=/usr/local/cuda-{own}/bin/nvcc "
            "pip install ."
        )
        return Finding("driver", "problem", detail, step)
    return Finding("driver", "ok", detail)


def find_tensorrt() -> Finding:
    """TensorRT: whether it imports and, with a GPU, whether it can create a builder (in a process of its own)."""
    try:
        version = str(import_tensorrt().__version__)
    except SessionError as error:
        state: FindingState = "missing" if "not installed" in str(error) else "problem"
        detail, _, step = str(error).partition("; ")
        return Finding("tensorrt", state, detail, step)
    if find_gpu().state != "ok":
        return Finding("tensorrt", "ok", f"TensorRT {version} (plugin registry only: its builder needs a GPU)")
    if text := _failure_of(TENSORRT_SMOKE_TEST):
        step = "install a TensorRT whose CUDA version the driver supports: pip install tensorrt-cu12 or tensorrt-cu13"
        return Finding("tensorrt", "problem", f"TensorRT {version} cannot create a builder: {text}", step)
    return Finding("tensorrt", "ok", f"TensorRT {version}")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, which imports nothing from the current folder."""
    command = [sys.executable, "-c", NOT_FROM_HERE + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _failure_of(code: str) -> str:
    """The last line of the code's error, or its exit code; "" if it succeeds."""
    result = run_python(code)
    return (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1] if result.returncode else ""


def find_library() -> Finding:
    """libpadfree.so: what it was compiled for, and whether that is what the GPUs here need."""
    info = plugin_library.read_build_info()
    try:
        path = plugin_library.find()
    except SessionError as error:
        detail, _, step = str(error).partition(" Next step: ")
        return Finding("library", "missing", detail, step or detail.partition("; ")[2])
    for gpu in _gpus():
        detail, _, step = device_code.problem(gpu.name, gpu.compute_capability, path).partition("; ")
        if detail:
            return Finding("library", "problem", detail, step)
    compiled = device_code.architectures(path)
    if compiled == ():
        return Finding("library", "ok", f"{path} (no device code: for machines without a GPU)")
    architectures = ", ".join(compiled or ()) or "unknown architectures"
    return Finding("library", "ok", f"{path} ({architectures}; CUDA {info.get('cuda_version', 'unknown')})")


def _gpus() -> list[Device]:
    """The GPUs that CUDA can use and padfree supports."""
    try:
        cuda = importlib.import_module("padfree.runtime.gpu.cuda")
    except SessionError:
        return []
    gpus: list[Device] = []
    for number in range(cuda.device_count()):
        with contextlib.suppress(SessionError):
            gpus.append(cuda.open_device(number))
    return gpus


def find_registration() -> Finding:
    """Whether TensorRT takes the library; tried in a process of its own, so that a broken file cannot end this one."""
    if find_library().state != "ok" or find_tensorrt().state != "ok":
        return Finding("registration", "missing", "needs TensorRT and the library", "see the lines above")
    if text := _failure_of("from padfree.runtime import plugin_library; plugin_library.load()"):
        detail = f"TensorRT does not take the library: {text}"
        return Finding("registration", "problem", detail, "install padfree again")
    return Finding("registration", "ok", "TensorRT loads the plugins")


def find_word_table() -> Finding:
    """The compiled library that looks up words of texts. Without it, the same tokens take ten times as long."""
    path = word_table.find()
    if path is None:
        folders = ", ".join(map(str, word_table.folders()))
        step = "install padfree where there is a C++ compiler"
        return Finding("tokens", "missing", f"no {word_table.LIBRARY_NAME} in {folders}", step)
    return Finding("tokens", "ok", f"{path} looks up words of texts")


def find_build_tools() -> list[Finding]:
    """What compiling the library needs. All of it is optional once the library is there."""
    findings = []
    compiler = os.environ.get("CXX") or "g++"
    path = shutil.which(compiler)
    findings.append(
        Finding("compiler", "ok", path)
        if path
        else Finding("compiler", "missing", f"no {compiler}", "apt-get install g++, or set CXX")
    )
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    cuda_home = os.environ.get("CUDA_HOME")
    if not nvcc and cuda_home and (Path(cuda_home) / "bin" / "nvcc").is_file():
        nvcc = str(Path(cuda_home) / "bin" / "nvcc")
    findings.append(Finding("nvcc", "ok", nvcc or "none installed; pip brings one of its own while it builds padfree"))
    roots = [Path(root) / "include" for root in [os.environ.get("TENSORRT_ROOT")] if root]
    folders = [*roots, *(Path(folder) for folder in HEADER_FOLDERS), Path("/usr/include/x86_64-linux-gnu")]
    header = next((folder for folder in folders if (folder / "NvInferVersion.h").is_file()), None)
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if header:
        findings.append(Finding("headers", "ok", f"TensorRT headers in {header}"))
    elif cargo:
        findings.append(Finding("headers", "ok", f"none installed; {cargo} fetches them while padfree is built"))
    else:
        step = "apt-get install cargo, or set TENSORRT_ROOT to an unpacked TensorRT"
        findings.append(Finding("headers", "missing", "no TensorRT headers and no cargo to fetch them", step))
    return findings


def _version(package: str) -> str:
    module: Any = importlib.import_module(package)
    return str(getattr(module, "__version__", "unknown"))


def _nvidia_smi(fields: str) -> str:
    output = run("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", timeout_s=NVIDIA_SMI_TIMEOUT_S)
    return output.partition("\n")[0]
