# SPDX-License-Identifier: Apache-2.0
"""Opens models in onnxruntime on the CPU, whatever their size."""

from __future__ import annotations

import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, inliner
from padfree.contract.machine import cores
from padfree.contract.names import DOMAIN, ORT_AS_WRITTEN, ORT_WRONG_FUSIONS

from .data_sizes import raw_bytes
from .deferred_data import Array, DeferredData
from .external_data import model_tensors
from .model import Model, without_initializers
from .model_file import EXTERNAL_DATA_BYTES, save_model
from .staged_session import StagedSession, can_be_staged

PROVIDERS = ["CPUExecutionProvider"]
_NAMELESS: Mapping[int, type[np.generic]] = MappingProxyType(
    {TensorProto.FLOAT8E4M3FN: np.uint8, TensorProto.BFLOAT16: np.uint16}
)
_FED_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
_INLINED_BYTES = 1 << 26
"""The most bytes of weights inside a message that is inlined, which copies it."""
_MOST_THREADS = 16
"""The most threads of each part of a model: dozens of parts have their own, and systems limit a process's threads."""
SILENT = 4  # for onnxruntime's log: errors come as exceptions, too


class _Session(ort.InferenceSession):  # type: ignore[misc]
    """A session that computes with weights that lie elsewhere, and keeps them.

    A session copies its initializers, whoever holds them, but reads the inputs of a run where they lie. So `fed_values`
    are inputs of the graph, which every run gets.
    """

    def __init__(
        self, content: bytes, options: ort.SessionOptions, values: list[ort.OrtValue], fed_values: Mapping[str, Array]
    ) -> None:
        self._values, self._fed_values = values, fed_values
        super().__init__(content, options, providers=PROVIDERS, disabled_optimizers=ORT_WRONG_FUSIONS)

    def get_inputs(self) -> list[Any]:
        """The inputs that a run has to be given."""
        return [item for item in super().get_inputs() if item.name not in self._fed_values]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None) -> list[Any]:
        """Runs as InferenceSession.run does."""
        return list(super().run(names, {**feeds, **self._fed_values}, options))


def open_session(model: Model, *, optimize: bool = True, keeps_memory: bool = True) -> ort.InferenceSession:
    """A session on the CPU; messages beyond protobuf's limit go through a file.

    Sessions share the weights that lie outside of the message, aligned, without a copy; a StagedSession reads deferred
    weights a part at a time. Without `optimize` no node is fused or moved: every tensor is computed as the graph says.
    Without `keeps_memory` each tensor goes when its last reader has run, which is for few nodes and large tensors.
    Raises what onnxruntime raises; its exceptions share no base class.
    """
    options = _options(optimize=optimize)
    if not keeps_memory:
        options.enable_cpu_mem_arena, options.enable_mem_reuse = False, True
    if _has_deferred(model) and can_be_staged(model.proto):
        options.enable_cpu_mem_arena = False  # it would keep what the largest run of each part took
        if cores() > _MOST_THREADS:
            options.intra_op_num_threads = _MOST_THREADS
        return StagedSession(model, lambda part: _open(part.SerializeToString(), options))
    return _whole_session(model, options)


def parts_of(session: Any) -> int:
    """How many parts a session runs in, for each of which the weights are read anew in every run; otherwise 1."""
    return session.parts if isinstance(session, StagedSession) and not session.keeps else 1


def results_of(
    session: Any, names: Sequence[str], feeds: Mapping[str, Any], *, at_once: int
) -> Iterator[tuple[str, Any]]:
    """Results by name, as they come: a session of parts runs once, others run for `at_once` results each time."""
    if isinstance(session, StagedSession):
        yield from session.each(names, feeds)
        return
    for first in range(0, len(names), at_once):
        some = list(names[first : first + at_once])
        yield from zip(some, session.run(some, dict(feeds)), strict=True)


def _has_deferred(model: Model) -> bool:
    """Whether there are weights that nobody has read yet."""
    return any(isinstance(model.weights.held_for(tensor), DeferredData) for tensor in model.proto.graph.initializer)


def _options(*, optimize: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads leave their cores
    options.add_session_config_entry(*ORT_AS_WRITTEN)
    options.enable_mem_reuse = False  # its planner's time grows with the square of a chain's length
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _whole_session(model: Model, options: ort.SessionOptions) -> ort.InferenceSession:
    proto = model.proto
    tensors = [tensor for tensor in proto.graph.initializer if tensor in model.weights]
    if tensors:
        fed_values = {tensor.name: model.array(tensor) for tensor in tensors if tensor.data_type in _FED_TYPES}
        values = {tensor.name: _ort_value(model, tensor) for tensor in tensors if tensor.name not in fed_values}
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        options.add_session_config_entry("session.disable_prepacking", "1")  # it copies all weights, for a few tokens
        content = _inline(_with_inputs(proto, fed_values)).SerializeToString()
        return _Session(content, options, list(values.values()), fed_values)
    size = sum(raw_bytes(tensor) for tensor in model_tensors(proto.graph))
    if size <= EXTERNAL_DATA_BYTES:
        return _open((_inline(proto) if size <= _INLINED_BYTES else proto).SerializeToString(), options)
    with tempfile.TemporaryDirectory(prefix="padfree-") as folder:
        path = Path(folder) / "model.onnx"
        save_model(proto, path)
        return _open(str(path), options)


def _inline(proto: ModelProto) -> ModelProto:
    """A rewritten model with bodies in place of padfree's nodes: onnxruntime would take longer to inline them."""
    ours = proto.functions and all(function.domain == DOMAIN for function in proto.functions)
    return inliner.inline_local_functions(proto) if ours else proto


def _with_inputs(proto: ModelProto, names: Container[str]) -> ModelProto:
    """A copy of a message in which the initializers of these names are inputs."""
    result = without_initializers(proto)
    inputs = {item.name for item in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in names:
            result.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            result.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return result


def _ort_value(model: Model, tensor: TensorProto) -> ort.OrtValue:
    """A weight's values; types that numpy does not know are passed as bits, with ONNX's number of the type."""
    kind, data = _NAMELESS.get(tensor.data_type), model.weights.data_of(tensor)
    if kind is not None and data is not None:
        bits = np.frombuffer(data, kind).reshape(tensor.dims)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, tensor.data_type)
    array = model.array(tensor)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _open(source: bytes | str, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(source, options, providers=PROVIDERS, disabled_optimizers=ORT_WRONG_FUSIONS)
