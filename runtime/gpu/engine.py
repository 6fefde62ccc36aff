# SPDX-License-Identifier: Apache-2.0
"""A plan in TensorRT: the engine, its tensors, and contexts whose memory lies in an arena's block."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from padfree.contract.metadata import Metadata

from ..errors import OutputSizeError, SessionError
from . import device_code, plugin_library
from .cuda import open_device
from .trt import check_engine, import_tensorrt, shared_logger

ALIGNMENT = 512  # of tensors in a block; TensorRT asks for 256 for its own memory

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Allocation:
    """Where a tensor of a run is: bytes from the start of the arena's block, its shape and type (bfloat16 as bits)."""

    offset: int
    shape: Shape
    dtype: np.dtype[Any]

    @functools.cached_property
    def size_bytes(self) -> int:
        """Its size in the block."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Placement:
    """Where everything of one run is in its block: inputs, then outputs, then TensorRT's activations."""

    inputs: Mapping[str, Allocation]
    outputs: Mapping[str, Allocation]
    outputs_start: int
    outputs_bytes: int
    scratch_start: int
    scratch_bytes: int

    @property
    def size_bytes(self) -> int:
        """The whole block."""
        return self.scratch_start + self.scratch_bytes


class Engine:
    """A deserialised plan. Contexts may be made and used by several threads at once, each by one.

    `content` are the plan's bytes where no file holds them yet; `plan` then names them in messages.

    Raises:
        SessionError: no TensorRT, no GPU or an old one, a plan from elsewhere, no plugin library with code for the GPU.
    """

    def __init__(
        self,
        plan: Path,
        metadata: Metadata,
        *,
        device: int,
        allow_other_gpu: bool,
        content: bytes | memoryview | None = None,
    ) -> None:
        # The order matters: TensorRT may crash the process where CUDA does not work, so CUDA is asked first.
        trt = import_tensorrt()
        gpu = open_device(device)
        info = metadata.engine
        if info is None:
            raise SessionError(f"{plan}: its metadata has no 'engine' entry; build the plan again")
        check_engine(info, str(plan), version=trt.__version__, device=gpu, allow_other_gpu=allow_other_gpu)
        if info.plugin_layers:
            device_code.require(gpu)
            plugin_library.load()
        self.device = gpu.index
        self.metadata = metadata
        self._plan = plan
        self._trt = trt
        self._logger = shared_logger(trt)
        self._logger.forget()
        self._runtime: Any = trt.Runtime(self._logger)
        self._engine: Any = self._runtime.deserialize_cuda_engine(content or plan.read_bytes())
        if self._engine is None:
            raise SessionError(f"{plan}: TensorRT cannot load it ({self.last_error()}); build the plan again")
        self._check_names()
        names = [*(item.name for item in metadata.inputs), *(item.name for item in metadata.outputs)]
        self.dtypes = {name: self._dtype(name) for name in names}

    def new_context(self) -> Context:
        """A context without device memory of its own.

        Raises:
            SessionError: TensorRT cannot make one.
        """
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is None:
            raise SessionError(
                f"{self._plan}: no execution context ({self.last_error()}); free GPU memory or build with a smaller "
                "profile"
            )
        return Context(self, context)

    def static_bytes(self) -> int:
        """Activation memory that a context takes when TensorRT allocates it: enough for the whole profile."""
        newer = hasattr(self._engine, "device_memory_size_v2")  # from 10.1 on; the older name went in 11.0
        return int(getattr(self._engine, "device_memory_size_v2" if newer else "device_memory_size"))

    def last_error(self) -> str:
        """The newest error that TensorRT logged."""
        return self._logger.errors[-1] if self._logger.errors else "TensorRT gave no reason"

    def close(self) -> None:
        """Frees the engine; its contexts must be gone. Harmless when called again."""
        self._engine = self._runtime = None

    def _check_names(self) -> None:
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        inputs = {name for name in names if self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT}
        input_names = {item.name for item in self.metadata.inputs}
        outputs = {item.name for item in self.metadata.outputs}
        if inputs != input_names or set(names) - inputs != outputs:
            raise SessionError(
                f"the engine's tensors {sorted(names)} are not those of its metadata {sorted(input_names | outputs)}; "
                "the metadata belongs to another plan: build the plan again"
            )

    def _dtype(self, name: str) -> np.dtype[Any]:
        kind = self._engine.get_tensor_dtype(name)
        return np.dtype(np.uint16) if kind == self._trt.bfloat16 else np.dtype(self._trt.nptype(kind))


class Context:
    """One execution context: the shapes that it is set to, and where their tensors are. One caller at a time."""

    def __init__(self, engine: Engine, context: Any) -> None:
        self._owner = engine
        self._context = context
        self._shapes: Mapping[str, Shape] = {}
        self._placement: Placement | None = None

    def arrange(self, shapes: Mapping[str, Shape]) -> Placement:
        """Sets the inputs' shapes and finds out how much memory every part of a run needs.

        Args:
            shapes: input name -> shape.

        Raises:
            SessionError: the engine does not take these shapes.
        """
        if self._placement is None or shapes != self._shapes:
            self._placement = self._new_placement(shapes)
            self._shapes = dict(shapes)
        return self._placement

    def bind(self, base: int, *, inputs_at: Mapping[str, int] | None = None, outputs_at: int | None = None) -> None:
        """Tells TensorRT the addresses of what was arranged last.

        Args:
            base: the address of a block that is large enough.
            inputs_at: addresses of inputs that stay where they are.
            outputs_at: where the outputs start, if not in the block.
        """
        placement = self._placement
        assert placement is not None  # arrange comes first
        moved_inputs = inputs_at or {}
        for name, allocation in placement.inputs.items():
            self._set_address(name, moved_inputs.get(name, base + allocation.offset))
        shift = base if outputs_at is None else outputs_at - placement.outputs_start
        for name, allocation in placement.outputs.items():
            self._set_address(name, shift + allocation.offset)
        self._set_device_memory(base + placement.scratch_start, placement.scratch_bytes)

    def enqueue(self, stream: int) -> None:
        """Puts one run on the stream."""
        if not self._context.execute_async_v3(stream):
            raise SessionError(
                f"TensorRT failed to run the engine: {self._owner.last_error()}; run with PADFREE_DEBUG=1"
            )

    def set_profiler(self, profiler: Any) -> None:
        """Lets a tensorrt.IProfiler get every layer's time in the runs that follow."""
        self._context.profiler = profiler

    def _new_placement(self, shapes: Mapping[str, Shape]) -> Placement:
        self._placement = None
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise SessionError(
                    f"the engine refused shape {list(shape)} for '{name}' ({self._owner.last_error()}); compare with "
                    "its profile in `padfree inspect`"
                )
        missing = self._context.infer_shapes()
        if missing:
            raise SessionError(f"inputs without a shape or address: {', '.join(missing)}; build the plan again")
        inputs, outputs_start = self._allocate(shapes, 0)
        names = [item.name for item in self._owner.metadata.outputs]
        outputs, end = self._allocate({name: self._output_shape(name) for name in names}, outputs_start)
        scratch_bytes = int(self._context.update_device_memory_size_for_shapes())
        return Placement(inputs, outputs, outputs_start, end - outputs_start, end, scratch_bytes)

    def _allocate(self, shapes: Mapping[str, Shape], start: int) -> tuple[dict[str, Allocation], int]:
        allocations = {}
        for name, shape in shapes.items():
            allocations[name] = Allocation(start, shape, self._owner.dtypes[name])
            start += -(-max(1, allocations[name].size_bytes) // ALIGNMENT) * ALIGNMENT
        return allocations, start

    def _set_device_memory(self, address: int, size_bytes: int) -> None:
        if hasattr(self._context, "set_device_memory"):  # from 10.1 on
            self._context.set_device_memory(address, size_bytes)
        else:
            self._context.device_memory = address

    def _set_address(self, name: str, address: int) -> None:
        if not self._context.set_tensor_address(name, address):
            raise SessionError(
                f"TensorRT refused the memory of '{name}' ({self._owner.last_error()}); build the plan again"
            )

    def _output_shape(self, name: str) -> Shape:
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            sizes = ", ".join("?" if size < 0 else str(size) for size in shape)
            raise OutputSizeError(
                f"output '{name}' has the shape [{sizes}], where ? follows from what the inputs hold; an "
                "engine's outputs get their memory before it runs, so that their sizes must follow from the inputs' "
                "shapes: build it without this output (padfree optimize --outputs NAMES), or run the .onnx file in "
                "onnxruntime"
            )
        return shape
