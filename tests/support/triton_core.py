# SPDX-License-Identifier: Apache-2.0
"""Calls libpadfree_triton_batching.so as Triton's scheduler does, with triton_core.cpp in place of the server."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class CoreError(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int), ("message", ctypes.c_char * 1024))


class Request(ctypes.Structure):
    """A request with one input; the first axis of `shape` is the batch."""

    _fields_ = (
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dims_count", ctypes.c_uint32),
        ("is_cancelled", ctypes.c_bool),
        ("input", ctypes.c_char_p),
    )

    def __init__(self, *shape: int, name: str = "input_ids") -> None:
        self.keep = (ctypes.c_int64 * len(shape))(*shape)
        super().__init__(self.keep, len(shape), False, name.encode())


def compile_core(compiler: str, folder: Path) -> Path:
    """Compiles the stand-in for the core."""
    library = folder / "libtriton_core.so"
    options = ["-std=c++17", "-shared", "-fPIC", f"-I{ROOT / 'plugins'}", "-o", str(library)]
    subprocess.run([compiler, *options, str(Path(__file__).with_name("triton_core.cpp"))], check=True, timeout=120)
    return library


def configuration(**changes: Any) -> dict[str, Any]:
    """A configuration as the core completes it, with a budget of 1000 tokens."""
    return {
        "name": "encoder",
        "max_batch_size": 8,
        "input": [
            {"name": "threshold", "dims": ["1"], "allow_ragged_batch": False},
            {"name": "input_ids", "dims": ["-1"], "allow_ragged_batch": True},
        ],
        "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 0},
        "parameters": {"padfree_max_tokens": {"string_value": "1000"}},
        **changes,
    }


class Scheduler:
    """Makes the calls of the core's scheduler to the library, step by step; payloads are numbered."""

    def __init__(self, library: ctypes.CDLL, config: dict[str, Any] | str) -> None:
        self._library = library
        self._batcher = ctypes.c_void_p()
        self._batch = ctypes.c_void_p()
        self._payloads = (ctypes.c_void_p * 4)()
        text = config if isinstance(config, str) else json.dumps(config)
        self._check("TRITONBACKEND_ModelBatcherInitialize", ctypes.byref(self._batcher), text.encode())

    def _check(self, name: str, *arguments: Any) -> None:
        call = getattr(self._library, name)
        call.restype = ctypes.POINTER(CoreError)
        error = call(*arguments)
        if error:
            raise ValueError(error.contents.message.decode())

    def begin(self, payload: int = 0) -> None:
        """Starts a round of forming the batch."""
        size = ctypes.sizeof(ctypes.c_void_p)
        index = ctypes.c_void_p(ctypes.addressof(self._payloads) + payload * size)
        self._check("TRITONBACKEND_ModelBatchInitialize", self._batcher, index)
        self._batch = ctypes.c_void_p(self._payloads[payload])

    def include(self, request: Request) -> bool:
        """Asks whether the request joins the batch."""
        answer = ctypes.c_bool(False)
        try:
            self._check(
                "TRITONBACKEND_ModelBatchIncludeRequest", ctypes.byref(request), self._batch, ctypes.byref(answer)
            )
        finally:
            self.answer = answer.value
        return self.answer

    def send(self) -> None:
        """Sends the batch to the model's instances; it may still grow."""
        self._check("TRITONBACKEND_ModelBatchFinalize", self._batch)

    def close(self) -> None:
        """Unloads the model."""
        self._check("TRITONBACKEND_ModelBatcherFinalize", self._batcher)
