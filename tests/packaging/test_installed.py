# SPDX-License-Identifier: Apache-2.0
"""The contents of an installation: every file of the packages, and a library that needs and exports what it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from padfree.runtime import SessionError
from padfree.runtime.gpu import device_code, plugin_library

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("contract", "onnx_tools", "builder", "runtime", "serving", "training", "bulk")
PACKAGES = {name: ROOT / name for name in NAMES}
PACKAGES |= {name: ROOT / "integrations" / name for name in ("sentence_transformers", "torch")}
OWN_FILES = [path for path in (ROOT / "package" / "padfree").iterdir() if path.is_file()]
HOST_LIBRARIES = ["libpadfree_text.so", "libpadfree_triton_batching.so", "libtriton_padfree.so"]
SYSTEM_LIBRARIES = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"}
SYSTEM_LIBRARIES |= {"librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.fixture
def installed_files() -> dict[str, Path]:
    """The files of an installed wheel by name, as listed in its record."""
    try:
        distribution = metadata.distribution("padfree")
    except metadata.PackageNotFoundError:
        pytest.skip("padfree is not installed; pip install .")
    if distribution.files is None:
        pytest.skip("padfree is not installed by pip; pip install .")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        pytest.skip("padfree is installed in editable mode: its files stay in the source tree")
    return {str(path): Path(str(path.locate())) for path in distribution.files or []}


def library(name: str) -> Path:
    """A library next to libpadfree.so; skips the test if none was built."""
    try:
        return plugin_library.find().with_name(name)
    except SessionError as error:
        pytest.skip(str(error))


def readelf(*arguments: str) -> str:
    """The output of binutils' readelf."""
    program = shutil.which("readelf")
    if program is None:
        pytest.skip("needs readelf (binutils)")
    return subprocess.run([program, "-W", *arguments], capture_output=True, text=True, check=True).stdout


def exports_of(path: Path) -> set[str]:
    """Names that a library defines for others."""
    columns = [line.split() for line in readelf("--dyn-syms", str(path)).splitlines()]
    symbols = [row for row in columns if len(row) > 7 and re.fullmatch(r"\d+:", row[0])]
    return {row[7].partition("@")[0] for row in symbols if row[6] != "UND"}


def test_the_wheel_holds_every_file_of_the_packages(installed_files: dict[str, Path]) -> None:
    sources = {path: folder.parent for folder in PACKAGES.values() for path in folder.rglob("*") if path.is_file()}
    expected = {
        f"padfree/{path.relative_to(parent)}" for path, parent in sources.items() if "__pycache__" not in path.parts
    }
    expected |= {f"padfree/{path.name}" for path in OWN_FILES}
    assert "padfree/py.typed" in expected
    assert any(name.startswith("padfree/builder/demo/data/") for name in expected)
    assert expected - set(installed_files) == set()


def test_the_wheel_holds_nothing_else(installed_files: dict[str, Path]) -> None:
    allowed = rf"padfree/({'|'.join(PACKAGES)})/.*"
    allowed += "|padfree/__pycache__/.*|" + "|".join(re.escape(f"padfree/{path.name}") for path in OWN_FILES)
    allowed += r"|padfree/lib/(build_info\.json|libpadfree(_register|_engine|_text|_triton_batching)?\.so)"
    allowed += r"|padfree/lib/libtriton_padfree\.so"
    allowed += r"|padfree/include/padfree\.h"
    allowed += r"|padfree-[^/]*\.dist-info/.*|.*/bin/padfree"
    assert [name for name in installed_files if not re.fullmatch(allowed, name)] == []


def test_build_info_tells_the_truth(installed_files: dict[str, Path]) -> None:
    info = json.loads(installed_files["padfree/lib/build_info.json"].read_text(encoding="utf-8"))
    assert info["format"] == 1
    assert info["version"] == metadata.version("padfree")
    assert info["built"] is ("padfree/lib/libpadfree.so" in installed_files)
    if info["built"]:
        compiled = device_code.architectures(installed_files["padfree/lib/libpadfree.so"])
        assert list(compiled or ()) == info["architectures"]
        assert ("nvcc_version" in info) is bool(info["architectures"])  # nvcc is needed only for device code
        assert info.get("nvcc_version", "").startswith(info.get("cuda_version", ""))
    else:
        assert info["missing"]
        assert len(info["missing"]) == len(info["next_steps"])


def test_every_part_has_one_version() -> None:
    stated = re.search(r"^project\(padfree VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text("utf-8"), re.MULTILINE)
    project = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert stated is not None
    assert project is not None
    assert cited is not None
    assert stated.group(1) == project.group(1) == cited.group(1)


@pytest.mark.parametrize("name", ["libpadfree.so", "libpadfree_register.so", "libpadfree_engine.so", *HOST_LIBRARIES])
def test_the_library_needs_system_libraries_alone(name: str) -> None:
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", str(library(name)))))
    assert needed  # the output of readelf was understood
    assert needed - SYSTEM_LIBRARIES == set()


def test_the_library_exports_what_tensorrt_the_builder_and_callers_of_c_ask_for_alone() -> None:
    of_builder = {"padfreeLinearTables", "padfreeTakeLinearTables"}
    of_header = set(re.findall(r"\b(padfree_\w+)\(", (ROOT / "include/padfree.h").read_text("utf-8")))
    assert exports_of(library("libpadfree.so")) == {"getCreators", "setLoggerFinder"} | of_builder | of_header


def test_the_registering_library_exports_nothing() -> None:
    assert exports_of(library("libpadfree_register.so")) == set()


def test_the_engine_library_exports_its_interface_alone() -> None:
    assert exports_of(library("libpadfree_engine.so")) == {"padfree_engine_api"}


def test_the_batching_library_exports_what_triton_asks_for_alone() -> None:
    names = ("ModelBatcherInitialize", "ModelBatcherFinalize", "ModelBatchInitialize", "ModelBatchIncludeRequest")
    expected = {f"TRITONBACKEND_{name}" for name in (*names, "ModelBatchFinalize")}
    assert exports_of(library("libpadfree_triton_batching.so")) == expected


def test_the_native_backend_exports_what_triton_asks_for_alone() -> None:
    names = ("Initialize", "Finalize", "ModelInitialize", "ModelFinalize", "ModelInstanceInitialize")
    expected = {f"TRITONBACKEND_{name}" for name in (*names, "ModelInstanceFinalize", "ModelInstanceExecute")}
    assert exports_of(library("libtriton_padfree.so")) == expected


def test_the_table_of_words_exports_what_the_runtime_calls_alone() -> None:
    expected = {f"padfree_words_{name}" for name in ("create", "destroy", "add", "clear", "look_up")}
    assert exports_of(library("libpadfree_text.so")) == expected
