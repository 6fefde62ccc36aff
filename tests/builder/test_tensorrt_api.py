# SPDX-License-Identifier: Apache-2.0
"""Every TensorRT name that the Python code uses exists in the bindings of all versions that padfree supports.

The lists of names are written by tensorrt_api/generate.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent / "tensorrt_api"
VERSIONS = ("10.6.0", "10.15.1", "11.2.1")
MODULES = ("trt", "self._trt", "tensorrt")

# Expressions that hold TensorRT objects, by file: the source does not show their types.
OBJECTS = {
    "builder/engine/engine_builder.py": {
        "self._builder": "Builder",
        "config": "IBuilderConfig",
        "profile": "IOptimizationProfile",
        "runtime": "Runtime",
        "engine": "ICudaEngine",
        "engine.create_engine_inspector()": "EngineInspector",
    },
    "builder/engine/network.py": {
        "parser": "OnnxParser",
        "network": "INetworkDefinition",
        "network.get_layer()": "ILayer",
        "error": "ParserError",
    },
    "builder/engine/timing_cache.py": {"config": "IBuilderConfig", "cache": "ITimingCache"},
    "runtime/gpu/plugin_library.py": {"registry": "IPluginRegistry", "creator": "IPluginCreatorV3One"},
    "runtime/gpu/engine.py": {
        "self._runtime": "Runtime",
        "self._engine": "ICudaEngine",
        "self._context": "IExecutionContext",
    },
}


def text_of(node: ast.expr) -> str | None:
    """An expression of names, attributes and calls as text, without the calls' arguments; None for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = text_of(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    if isinstance(node, ast.Call):
        inner = text_of(node.func)
        return None if inner is None else f"{inner}()"
    return None


def used_names(source: str, objects: dict[str, str]) -> set[str]:
    """The names of TensorRT's module that source code uses: Class, Class.member, function."""
    results = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        owner = text_of(node.value)
        if owner is None:
            continue
        if owner in objects:
            results.add(f"{objects[owner]}.{node.attr}")
            continue
        for module in MODULES:
            if owner == module:
                results.add(node.attr)
            elif owner.startswith(f"{module}.") and "(" not in owner:
                results.add(f"{owner.removeprefix(f'{module}.')}.{node.attr}")
    return results


def all_used_names() -> dict[str, set[str]]:
    """The names of TensorRT that each file uses."""
    files = sorted(path for folder in ("builder", "runtime") for path in (ROOT / folder).rglob("*.py"))
    names = {
        (key := str(path.relative_to(ROOT))): used_names(path.read_text(encoding="utf-8"), OBJECTS.get(key, {}))
        for path in files
    }
    return {path: actual for path, actual in names.items() if actual}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_used_name_exists(version: str) -> None:
    known = set((LISTS / f"{version}.txt").read_text(encoding="utf-8").split())
    absent = {path: sorted(names - known) for path, names in all_used_names().items() if names - known}
    assert not absent


def test_every_object_of_the_table_is_used() -> None:
    used = all_used_names()
    for path, objects in OBJECTS.items():
        for expression, kind in objects.items():
            alone = used_names((ROOT / path).read_text(encoding="utf-8"), {expression: kind})
            without = used_names((ROOT / path).read_text(encoding="utf-8"), {})
            assert alone - without, f"{path} no longer uses '{expression}'"
    assert {"Builder.create_network", "IExecutionContext.execute_async_v3"} <= set().union(*used.values())


def test_the_collector_sees_modules_objects_and_calls() -> None:
    source = "trt.Builder(x).reset(); config.set_flag(trt.BuilderFlag.TF32); other.set_flag(trt.__version__)"
    assert used_names(source, {"config": "IBuilderConfig", "trt.Builder()": "Builder"}) == {
        "Builder",
        "Builder.reset",
        "BuilderFlag",
        "BuilderFlag.TF32",
        "IBuilderConfig.set_flag",
    }


@pytest.mark.needs_tensorrt
def test_the_list_of_the_installed_version_is_current() -> None:
    import tensorrt as trt

    version = ".".join(trt.__version__.split(".")[:3])
    if version not in VERSIONS:
        pytest.skip(f"no list for TensorRT {version}")
    known = set((LISTS / f"{version}.txt").read_text(encoding="utf-8").split())
    assert {name for name in dir(trt.IBuilderConfig) if not name.startswith("_")} == {
        name.removeprefix("IBuilderConfig.") for name in known if name.startswith("IBuilderConfig.")
    }
