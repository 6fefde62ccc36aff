# SPDX-License-Identifier: Apache-2.0
"""Runs plans in TensorRT: one stream, buffers that only grow, shapes set for every call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import plugin_library
from .backend import widen_bfloat16
from .cuda import DeviceBuffer, Graph, PinnedBuffer, Stream, make_current, open_device
from .errors import SessionError
from .metadata import Metadata
from .trt import check_engine, import_tensorrt, make_logger

Array = npt.NDArray[Any]


class TensorRTBackend:
    """An engine with its context. One caller at a time.

    run() is upload(), enqueue(), download(); between upload() and download() enqueue() may be called any number of
    times, captured in a CUDA graph, or measured.

    Raises:
        SessionError: no TensorRT, no GPU or an old one, a plan from elsewhere, no plugin library.
    """

    def __init__(self, plan: Path, metadata: Metadata, *, device: int = 0, allow_other_gpu: bool = False) -> None:
        # The order matters: TensorRT may crash the process where CUDA does not work, so CUDA is asked first.
        trt = import_tensorrt()
        gpu = open_device(device)
        info = metadata.engine
        if info is None:
            raise SessionError(f"{plan}: its metadata has no 'engine' entry; build the plan again")
        check_engine(info, str(plan), version=trt.__version__, device=gpu, allow_other_gpu=allow_other_gpu)
        if info.plugin_layers:
            plugin_library.load()
        self._metadata = metadata
        self._device = gpu.index
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._logger = make_logger(trt)
        self._runtime: Any = trt.Runtime(self._logger)
        self._engine: Any = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            raise SessionError(f"{plan}: TensorRT cannot load it ({self._last_error()}); build the plan again")
        self._context: Any = self._engine.create_execution_context()
        if self._context is None:
            raise SessionError(
                f"{plan}: no execution context ({self._last_error()}); free GPU memory or build with a smaller profile"
            )
        self._names = self._io_names(trt)
        self._dtypes = {name: self._dtype(trt, name) for name in self._names}
        self._stream = Stream()
        self._device_buffers = {name: DeviceBuffer() for name in self._names}
        self._host_buffers = {name: PinnedBuffer() for name in self._names}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Runs the engine once on host arrays; outputs by name, in memory of their own."""
        self.upload(feeds)
        self.enqueue()
        return self.download()

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Copies inputs to the device, sets their shapes, and makes room for the outputs."""
        if self._context is None:
            raise SessionError("the session is closed; open a new one")
        make_current(self._device)  # the caller may be on another thread than the one that opened the session
        for name, array in feeds.items():
            if not self._context.set_input_shape(name, tuple(array.shape)):
                raise SessionError(
                    f"the engine refused shape {list(array.shape)} for '{name}' ({self._last_error()}); compare with "
                    "its profile in `padfree inspect`"
                )
            self._bind(name, self._device_buffers[name].reserve(array.size * self._dtypes[name].itemsize))
        self._shapes = {name: array.shape for name, array in feeds.items()}
        self.replace_values(feeds)
        missing = self._context.infer_shapes()
        if missing:
            raise SessionError(f"inputs without a shape or address: {', '.join(missing)}; build the plan again")
        for item in self._metadata.outputs:
            shape = self._output_shape(item.name)
            size_bytes = int(np.prod(shape, dtype=np.int64)) * self._dtypes[item.name].itemsize
            self._bind(item.name, self._device_buffers[item.name].reserve(size_bytes))

    def replace_values(self, feeds: Mapping[str, Array]) -> None:
        """Copies other values of the same shapes to the device, where a captured graph finds them.

        Raises:
            SessionError: a shape differs from the one uploaded last.
        """
        self._stream.synchronize()  # staging memory may still be read by an earlier copy
        for name, array in feeds.items():
            if self._shapes.get(name) != array.shape:
                raise SessionError(
                    f"'{name}' has shape {list(array.shape)}, uploaded was {self._shapes.get(name)}; call upload"
                )
            staging = self._host_buffers[name].view(array.shape, self._dtypes[name])
            np.copyto(staging, array, casting="same_kind")
            if staging.nbytes:
                self._stream.upload(staging, self._device_buffers[name].reserve(0))

    def enqueue(self) -> None:
        """Puts one run of the engine on the stream."""
        if not self._context.execute_async_v3(self._stream.handle):
            raise SessionError(f"TensorRT failed to run the engine: {self._last_error()}; run with PADFREE_DEBUG=1")

    def profile(self, profiler: Any, runs: int) -> None:
        """Runs the engine on the inputs uploaded last under a tensorrt.IProfiler, which gets every layer's time."""
        self._context.profiler = profiler
        for _ in range(runs):
            self.enqueue()
            self._stream.synchronize()

    def download(self) -> dict[str, Array]:
        """Copies outputs to the host and waits for them."""
        views: dict[str, Array] = {}
        for item in self._metadata.outputs:
            view = self._host_buffers[item.name].view(self._output_shape(item.name), self._dtypes[item.name])
            if view.nbytes:
                self._stream.download(self._device_buffers[item.name].reserve(0), view)
            views[item.name] = view
        self._stream.synchronize()
        return {
            item.name: widen_bfloat16(views[item.name]) if item.dtype == "bfloat16" else views[item.name].copy()
            for item in self._metadata.outputs
        }

    @property
    def can_capture(self) -> bool:
        """Whether every shape follows from the inputs' shapes: PadfreeIndex alone makes one that depends on data."""
        return "PadfreeIndex" not in self._metadata.plugins

    def capture(self) -> Graph:
        """A CUDA graph of enqueue() for the shapes uploaded last; valid until the next upload().

        Raises:
            SessionError: an engine with the padded interface, whose token count depends on data, or a capture that
                fails.
        """
        if not self.can_capture:
            raise SessionError("CUDA graphs need a packed engine, this one is padded; build with --interface packed")
        self.enqueue()  # the first run after a change of shapes may allocate, which a capture forbids
        self._stream.synchronize()
        return self._stream.capture(self.enqueue)

    def time_ms(self, iterations: int, *, graph: Graph | None = None) -> list[float]:
        """GPU times in ms of enqueue(), or of a captured graph, for the inputs uploaded last."""
        return self._stream.time_ms(graph.launch if graph else self.enqueue, iterations)

    def close(self) -> None:
        """Frees the engine, its context and all buffers; harmless when called again."""
        if self._context is None:
            return
        self._stream.synchronize()
        self._context = self._engine = self._runtime = None
        for name in self._names:
            self._device_buffers[name].close()
            self._host_buffers[name].close()
        self._stream.close()

    def _bind(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise SessionError(f"TensorRT refused the memory of '{name}' ({self._last_error()}); build the plan again")

    def _io_names(self, trt: Any) -> list[str]:
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        inputs = {name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT}
        described = {item.name for item in self._metadata.inputs}
        outputs = {item.name for item in self._metadata.outputs}
        if inputs != described or set(names) - inputs != outputs:
            raise SessionError(
                f"the engine's tensors {sorted(names)} are not those of its metadata {sorted(described | outputs)}; "
                "the metadata belongs to another plan: build the plan again"
            )
        return names

    def _dtype(self, trt: Any, name: str) -> np.dtype[Any]:
        kind = self._engine.get_tensor_dtype(name)
        return np.dtype(np.uint16) if kind == trt.bfloat16 else np.dtype(trt.nptype(kind))

    def _output_shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise SessionError(
                f"output '{name}' has shape {list(shape)}, which depends on data; padfree's engines know all output "
                "shapes from their inputs: rewrite and build the model again"
            )
        return shape

    def _last_error(self) -> str:
        return self._logger.errors[-1] if self._logger.errors else "TensorRT gave no reason"
