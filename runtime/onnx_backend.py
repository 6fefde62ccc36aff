# SPDX-License-Identifier: Apache-2.0
"""Runs rewritten ONNX files in onnxruntime on the CPU: no GPU, no TensorRT, the operators' own ONNX bodies."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from padfree.contract.fields import decode
from padfree.contract.file_kinds import refuse_special
from padfree.contract.metadata import Metadata
from padfree.contract.names import ONNX_METADATA_KEY, ORT_AS_WRITTEN, ORT_WRONG_FUSIONS
from padfree.contract.os_errors import not_readable

from .backend import widen_bfloat16
from .cpu_runs import CpuRuns
from .errors import SessionError
from .masks import check_padding
from .plan_files import parse_metadata

BFLOAT16 = "tensor(bfloat16)"
"""onnxruntime's name of the type."""

FATAL_ONLY = 4
"""What is logged: errors are raised, and a server that gets bad requests is not to write a line for each."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that is over."""

    outputs: dict[str, Any]

    def wait(self) -> None:
        """The results are there already."""


class OnnxBackend:
    """One onnxruntime session; `metadata` is what the rewriter wrote into the file.

    Args:
        path: the file.
        threads: the threads of a run; 0: onnxruntime's choice.
    """

    metadata: Metadata

    def __init__(self, path: Path, threads: int = 0) -> None:
        refuse_special(path, SessionError)
        if not path.is_file():
            raise SessionError(f"{path}: no such file; make one with: padfree optimize model.onnx -o {path}")
        _check_readable(path)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = FATAL_ONLY
        options.add_session_config_entry(*ORT_AS_WRITTEN)
        if threads < 0:
            raise SessionError(f"cpu_threads is {threads}, allowed: 1 or more, or 0 for every core; leave it out")
        options.intra_op_num_threads = threads
        try:
            self._session: Any = ort.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=ORT_WRONG_FUSIONS
            )
        except Exception as error:  # onnxruntime's error classes share no public base
            raise SessionError(_load_message(path, error)) from error
        properties = self._session.get_modelmeta().custom_metadata_map
        if ONNX_METADATA_KEY not in properties:
            raise SessionError(
                f"{path}: holds no padfree metadata, so it is not a rewritten model; first run: "
                f"padfree optimize {path.name} -o packed.onnx"
            )
        try:
            raw = decode(properties[ONNX_METADATA_KEY])
        except ValueError as error:
            raise SessionError(f"{path}: damaged padfree metadata ({error}); rewrite the model again") from error
        self.metadata = parse_metadata(raw, str(path))
        self._outputs = [item.name for item in self.metadata.outputs]
        self._has_bfloat16 = any(item.type == BFLOAT16 for item in self._session.get_outputs())
        self._runs = CpuRuns(self.metadata)

    def start(
        self,
        feeds: Mapping[str, Any],
        *,
        on_device: bool = False,
        stream: Any = None,
        patient: bool = True,  # noqa: ARG002
    ) -> FinishedRun:
        """Runs the model; it is over when this returns."""
        return FinishedRun(self.run(feeds, on_device=on_device, stream=stream))

    def run(self, feeds: Mapping[str, Any], *, on_device: bool = False, stream: Any = None) -> dict[str, Any]:
        """Runs the model, once or for some sequences after the other; outputs by name, on the host."""
        if on_device or stream is not None:
            raise SessionError(
                "results on the GPU and streams need a plan, this session runs an .onnx file; leave them out"
            )
        if self._session is None:
            raise SessionError("the session is closed; open a new one")
        check_padding(feeds, self.metadata)
        return self._runs.run(feeds, self._run_once)

    def _run_once(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            values = self._values(feeds) if self._has_bfloat16 else self._session.run(self._outputs, dict(feeds))
        except Exception as error:  # onnxruntime's error classes share no public base
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in feeds.items())
            raise SessionError(f"onnxruntime failed on {shapes}: {_first_line(error)}") from error
        return dict(zip(self._outputs, values, strict=True))

    def _values(self, feeds: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
        """The outputs of a model of which some are bfloat16, which onnxruntime has as memory alone: float32."""
        feed_values = {
            name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value)) for name, value in feeds.items()
        }
        values = self._session.run_with_ort_values(self._outputs, feed_values)
        return [_wide_numbers(value) if value.data_type() == BFLOAT16 else value.numpy() for value in values]

    def close(self) -> None:
        """Frees the onnxruntime session."""
        self._session = None


def _wide_numbers(value: Any) -> npt.NDArray[np.float32]:
    """The numbers of an OrtValue of bfloat16 in the memory of this process."""
    shape = tuple(value.shape())
    if 0 in shape:
        return np.empty(shape, np.float32)
    bits = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return widen_bfloat16(np.ctypeslib.as_array(bits).reshape(shape))


def _check_readable(path: Path) -> None:
    """Names what onnxruntime says nothing of: it takes names as UTF-8, and calls every other reason a damaged file."""
    try:
        str(path).encode()
        path.open("rb").close()
    except UnicodeEncodeError as error:
        raise SessionError(f"{path}: its name, or that of a folder above it, is not UTF-8; rename it") from error
    except OSError as error:
        raise SessionError(f"{path}: {not_readable(error, 'check the file')}") from error


def _load_message(path: Path, error: Exception) -> str:
    text = _first_line(error)
    if "NOT_IMPLEMENTED" in text or "bfloat16" in text:
        return (
            f"{path}: onnxruntime on a CPU lacks a kernel that this file needs ({text}); rewrite the model with "
            "--precision fp32, or build an engine and run that"
        )
    return f"{path}: onnxruntime cannot load it ({text}); check that it is a whole ONNX file, or rewrite it again"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
