# SPDX-License-Identifier: Apache-2.0
"""The library in a real TensorRT: all ways of loading it, its creators, and its messages in TensorRT's logger."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.onnx_tools.operators import OPERATORS
from padfree.onnx_tools.operators.spec import AttributeValue

from tests.support.samples import PLAIN_POOL, all_variants, fields_in_engine, variants

from .plugin_abi import LoggerFinder, Plugin, PluginLibrary, address_of_binding, loaded_major

trt = pytest.importorskip("tensorrt", exc_type=ImportError)
pytestmark = pytest.mark.needs_tensorrt

ROOT = Path(__file__).resolve().parents[2]
LOADING_SCRIPT = Path(__file__).with_name("loading.py")
EVERY_CREATOR = sorted([name, "1", ""] for name in OPERATORS)
BAD_POOL: dict[str, AttributeValue] = {**PLAIN_POOL, "mode": "median"}
BAD_POOL_MESSAGE = (
    "padfree: PadfreePool 'bad_node': attribute mode is \"median\"; allowed: first, last, mean, max, each"
)


def has_gpu() -> bool:
    """Whether CUDA can be initialised here."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def load_in_fresh_process(library: Path, *steps: str) -> tuple[list[list[str]], str]:
    """Creators in the registry after the steps of loading.py, and the text written to stderr."""
    command = [sys.executable, str(LOADING_SCRIPT), str(library), *steps]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(
    "steps",
    [
        *("load", "load load", "load unload load"),  # registry.load_library
        *("dlopen", "dlopen dlopen", "dlopen copy", "early-dlopen"),  # Triton, trtexec --staticPlugins, ctypes
        *("polygraphy", "early-polygraphy"),
        *("load dlopen", "dlopen load", "early-dlopen load"),
    ],
)
def test_every_way_of_loading(library_path: Path, steps: str) -> None:
    creators, errors = load_in_fresh_process(library_path, *steps.split())
    assert creators == EVERY_CREATOR
    assert "padfree:" not in errors


def test_unloading_takes_the_creators_away(library_path: Path) -> None:
    creators, _ = load_in_fresh_process(library_path, "load", "unload")
    assert creators == []


def test_register_library_without_tensorrt_says_so(library_path: Path) -> None:
    creators, errors = load_in_fresh_process(library_path, "alone", "load")
    assert creators == EVERY_CREATOR
    assert "no TensorRT of version 10 or later is loaded in this process; load TensorRT before" in errors


@pytest.fixture(scope="module")
def registry(library_path: Path) -> Any:
    """This process's plugin registry, with the library loaded through it."""
    registry = trt.get_plugin_registry()
    if not any(creator.name in OPERATORS for creator in registry.all_creators):
        registry.load_library(str(library_path))
    return registry


def create(registry: Any, operator: str, attributes: Mapping[str, Any], name: str = "node_1") -> Any:
    """A plugin made through TensorRT's bindings, None if the creator refuses."""
    types = trt.PluginFieldType
    fields = []
    for attribute, value in attributes.items():
        if isinstance(value, str):
            fields.append(trt.PluginField(attribute, np.frombuffer(value.encode(), np.int8), types.CHAR))
        elif isinstance(value, float):
            fields.append(trt.PluginField(attribute, np.array([value], np.float32), types.FLOAT32))
        else:
            fields.append(trt.PluginField(attribute, np.atleast_1d(np.array(value, np.int32)), types.INT32))
    creator = registry.get_creator(operator, "1", "")
    return creator.create_plugin(name, trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)


@pytest.mark.parametrize("operator", OPERATORS)
def test_creator_in_the_registry(registry: Any, operator: str) -> None:
    types = {"int": "INT32", "float": "FLOAT32", "string": "CHAR"}
    creator = registry.get_creator(operator, "1", "")
    assert (creator.name, creator.plugin_version, creator.plugin_namespace) == (operator, "1", "")
    expected = {attribute.name: types[attribute.type] for attribute in OPERATORS[operator].attributes}
    assert {field.name: field.type.name for field in creator.field_names} == expected


@pytest.mark.parametrize(
    ("operator", "attributes"), all_variants(), ids=[f"{name}-{i}" for i, (name, _) in enumerate(all_variants())]
)
def test_fields_come_back(registry: Any, operator: str, attributes: dict[str, AttributeValue]) -> None:
    result = create(registry, operator, attributes)
    assert result is not None
    serialised = Plugin(address_of_binding(result)).serialised_fields()
    expected = fields_in_engine(operator, attributes)
    assert serialised == expected
    again = create(registry, operator, serialised)
    assert Plugin(address_of_binding(again)).serialised_fields() == expected
    clone = Plugin(address_of_binding(again)).clone()
    assert clone.serialised_fields() == expected
    clone.destroy()


def test_what_was_measured_comes_back(registry: Any) -> None:
    attributes = {**fields_in_engine("PadfreeLinear", next(variants("PadfreeLinear"))), "choices": (64, 0, 512, 0)}
    result = create(registry, "PadfreeLinear", attributes)
    assert Plugin(address_of_binding(result)).serialised_fields() == attributes


@pytest.mark.parametrize("operator", OPERATORS)
def test_build_capability_in_the_bindings(registry: Any, operator: str) -> None:
    for attributes in variants(operator):
        result = create(registry, operator, attributes)
        build = result.get_capability_interface(trt.PluginCapabilityType.BUILD)
        core = result.get_capability_interface(trt.PluginCapabilityType.CORE)
        assert build.num_outputs == len(OPERATORS[operator].outputs_for(attributes))
        assert build.timing_cache_id.startswith(f"{operator} 1")
        assert (core.plugin_name, core.plugin_version, core.plugin_namespace) == (operator, "1", "")


class RecordingLogger(trt.ILogger):  # type: ignore[misc]
    """A logger such as users write."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        if severity == trt.ILogger.ERROR:
            self.errors.append(message)


@pytest.fixture
def found_logger(registry: Any, library: PluginLibrary) -> Iterator[RecordingLogger]:
    """A TensorRT logger that the library finds through an ILoggerFinder, both laid out as in the running version."""
    assert registry is not None
    logger = RecordingLogger()
    finder = LoggerFinder(loaded_major(), address_of_binding(logger))
    library.set_logger_finder(finder.address)
    yield logger
    library.set_logger_finder(None)


def test_running_version_is_recognised() -> None:
    assert loaded_major() == int(trt.__version__.split(".")[0])


def test_bad_attribute_reaches_the_logger(registry: Any, found_logger: RecordingLogger) -> None:
    assert create(registry, "PadfreePool", BAD_POOL, "bad_node") is None
    assert [message for message in found_logger.errors if message.startswith(BAD_POOL_MESSAGE)]


@pytest.mark.parametrize("operator", [name for name, spec in OPERATORS.items() if spec.attributes])
def test_no_attributes_are_refused(registry: Any, found_logger: RecordingLogger, operator: str) -> None:
    assert create(registry, operator, {}) is None
    assert f"attribute {OPERATORS[operator].attributes[0].name} is missing" in found_logger.errors[0]


def test_without_a_logger_the_message_is_on_stderr(registry: Any, capfd: pytest.CaptureFixture[str]) -> None:
    if _runtime_logger_exists():
        pytest.skip("this process already has a TensorRT logger")
    assert create(registry, "PadfreePool", BAD_POOL, "bad_node") is None
    assert BAD_POOL_MESSAGE in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU: TensorRT makes no runtime without one")
def test_bad_attribute_reaches_the_runtimes_logger(library_path: Path) -> None:
    script = (
        "import sys, tensorrt as trt\n"
        "from tests.plugins import test_registry as t\n"
        "logger = t.RecordingLogger()\n"
        "runtime = trt.Runtime(logger)\n"
        "registry = trt.get_plugin_registry()\n"
        f"registry.load_library({str(library_path)!r})\n"
        "assert t.create(registry, 'PadfreePool', t.BAD_POOL, 'bad_node') is None\n"
        "sys.stdout.write(logger.errors[-1])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(BAD_POOL_MESSAGE)


def _runtime_logger_exists() -> bool:
    library = ctypes.CDLL(f"libnvinfer.so.{loaded_major()}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    library.getLogger.restype = ctypes.c_void_p
    return library.getLogger() is not None
