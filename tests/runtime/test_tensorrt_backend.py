# SPDX-License-Identifier: Apache-2.0
"""The backend's handling of shapes, addresses and buffers, with an engine and memory that live on the host.

The stand-ins keep TensorRT's rules: a run needs a shape and an address for every input and an address for every output,
reads inputs and writes outputs at those addresses, and copies are only visible through them.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from padfree.runtime import SessionError
from padfree.runtime.device import Device
from padfree.runtime.metadata import Metadata, parse_metadata

INPUTS = ("input_ids", "token_type_ids", "seq_lens")
OUTPUTS = ("hidden", "lengths")
TYPES: dict[str, Any] = {**dict.fromkeys(INPUTS, np.int32), **dict.fromkeys(OUTPUTS, np.float32)}


class Memory:
    """Grows and never shrinks, as the real buffers do; poisoned when allocated."""

    def __init__(self) -> None:
        self.block: Any = None

    def reserve(self, size_bytes: int) -> int:
        if self.block is None or size_bytes > len(self.block):
            self.block = ctypes.create_string_buffer(b"\xff" * (size_bytes + 8))
        return ctypes.addressof(self.block)

    def view(self, shape: tuple[int, ...], dtype: Any) -> Any:
        count = int(np.prod(shape))
        self.reserve(count * np.dtype(dtype).itemsize)
        return np.frombuffer(self.block, dtype=dtype, count=count).reshape(shape)

    def close(self) -> None:
        self.block = None


class Stream:
    handle = 7

    def upload(self, array: Any, address: int) -> None:
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, address: int, array: Any) -> None:
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def capture(self, enqueue: Callable[[], None]) -> Any:
        return SimpleNamespace(launch=enqueue, close=lambda: None)

    def time_ms(self, work: Callable[[], None], iterations: int) -> list[float]:
        for _ in range(iterations):
            work()
        return [1.0] * iterations

    def synchronize(self) -> None:
        """Everything is done at once."""

    def close(self) -> None:
        """Holds nothing."""


class Context:
    """Runs the packed model: hidden = (id, type), lengths = seq_lens."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.fails = False

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = shape
        return shape[0] <= 100

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address != 0

    def infer_shapes(self) -> list[str]:
        return sorted(set(INPUTS) - set(self.shapes))

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (*self.shapes["input_ids"], 2) if name == "hidden" else (*self.shapes["seq_lens"], 1)

    def array(self, name: str) -> Any:
        shape = self.get_tensor_shape(name) if name in OUTPUTS else self.shapes[name]
        size = int(np.prod(shape)) * np.dtype(TYPES[name]).itemsize
        return np.frombuffer((ctypes.c_byte * size).from_address(self.addresses[name]), TYPES[name]).reshape(shape)

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == Stream.handle
        self.array("hidden")[:] = np.stack([self.array("input_ids"), self.array("token_type_ids")], axis=1)
        self.array("lengths")[:] = self.array("seq_lens")[:, None]
        return not self.fails


class Engine:
    def __init__(self, names: tuple[str, ...], context: Context | None) -> None:
        self.names, self.context, self.num_io_tensors = names, context, len(names)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> str:
        return "out" if name in OUTPUTS else "in"

    def get_tensor_dtype(self, name: str) -> Any:
        return TYPES[name]

    def create_execution_context(self) -> Context | None:
        return self.context


class Setup:
    """A machine with an engine; tests change its parts before they open the backend."""

    def __init__(self, module: Any, metadata: Metadata, plan: Path) -> None:
        self.module, self.metadata, self.plan = module, metadata, plan
        self.context = Context()
        self.engine: Engine | None = Engine(tuple(TYPES), self.context)

    def trt(self) -> Any:
        def make_runtime(_logger: Any) -> Any:
            return SimpleNamespace(deserialize_cuda_engine=lambda _plan: self.engine)

        return SimpleNamespace(
            __version__="10.6.0.26",
            Runtime=make_runtime,
            TensorIOMode=SimpleNamespace(INPUT="in"),
            bfloat16="bfloat16",
            nptype=lambda kind: kind,
        )

    def open(self) -> Any:
        return self.module.TensorRTBackend(self.plan, self.metadata)


@pytest.fixture
def setup(packed_metadata: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setup]:
    gpu = Device(0, "NVIDIA H200", 9, 0)
    cuda = SimpleNamespace(
        DeviceBuffer=Memory,
        PinnedBuffer=Memory,
        Graph=object,
        Stream=Stream,
        open_device=lambda _index: gpu,
        make_current=lambda _index: None,
    )
    monkeypatch.setitem(sys.modules, "padfree.runtime.cuda", cuda)
    monkeypatch.delitem(sys.modules, "padfree.runtime.tensorrt_backend", raising=False)
    module = importlib.import_module("padfree.runtime.tensorrt_backend")
    engine = {
        "tensorrt": "10.6.0",
        "gpu_name": gpu.name,
        "compute_capability": "9.0",
        "profile": {"min_tokens": 1, "opt_tokens": 50, "max_tokens": 100, "max_batch": 100, "max_seq_len": 16},
        "plan_bytes": 0,
        "plan_sha256": "",
        "plugin_layers": {},
    }
    plan = tmp_path / "model.plan"
    plan.touch()
    made = Setup(module, parse_metadata({**packed_metadata, "engine": engine}, "test"), plan)
    monkeypatch.setattr(module, "import_tensorrt", made.trt)
    monkeypatch.setattr(module, "make_logger", lambda _trt: SimpleNamespace(errors=["the newest error"]))
    yield made
    sys.modules.pop("padfree.runtime.tensorrt_backend", None)


def feeds(ids: list[int], lens: list[int]) -> dict[str, Any]:
    array = np.array(ids, dtype=np.int32)
    return {"input_ids": array, "token_type_ids": array % 2, "seq_lens": np.array(lens, dtype=np.int32)}


@pytest.mark.parametrize("sizes", [(3, 50, 1), (80, 2, 80)])
def test_runs_of_any_size_follow_each_other(setup: Setup, sizes: tuple[int, ...]) -> None:
    backend = setup.open()
    kept = []
    for size in sizes:
        ids = list(range(size))
        outputs = backend.run(feeds(ids, [size, 0]))
        kept.append((outputs, ids))
    for outputs, ids in kept:  # results have memory of their own: later runs did not change them
        assert outputs["hidden"][:, 0].tolist() == ids
        assert outputs["lengths"].tolist() == [[len(ids)], [0]]


def test_a_graph_sees_replaced_values(setup: Setup) -> None:
    backend = setup.open()
    backend.upload(feeds([1, 2], [2]))
    graph = backend.capture()
    backend.replace_values(feeds([3, 4], [2]))
    graph.launch()
    assert backend.download()["hidden"][:, 0].tolist() == [3, 4]
    assert backend.time_ms(3, graph=graph) == [1.0] * 3
    with pytest.raises(SessionError, match=r"'input_ids' has shape \[3\], uploaded was \(2,\); call upload"):
        backend.replace_values(feeds([1, 2, 3], [3]))


def test_errors_repeat_what_tensorrt_said(setup: Setup) -> None:
    backend = setup.open()
    with pytest.raises(SessionError, match=r"refused shape \[101\] for 'input_ids' \(the newest error\)"):
        backend.upload(feeds([0] * 101, [101]))
    setup.context.fails = True
    with pytest.raises(SessionError, match="failed to run the engine: the newest error"):
        backend.run(feeds([1], [1]))


def test_plans_that_cannot_be_loaded(setup: Setup) -> None:
    setup.engine = Engine(tuple(TYPES), None)
    with pytest.raises(SessionError, match="no execution context"):
        setup.open()
    setup.engine = Engine(("input_ids", "other"), setup.context)
    with pytest.raises(SessionError, match="the metadata belongs to another plan"):
        setup.open()
    setup.engine = None
    with pytest.raises(SessionError, match=r"TensorRT cannot load it \(the newest error\)"):
        setup.open()


def test_closing_twice_is_harmless(setup: Setup) -> None:
    backend = setup.open()
    backend.run(feeds([1], [1]))
    backend.close()
    backend.close()
    with pytest.raises(SessionError, match="the session is closed"):
        backend.upload(feeds([1], [1]))
