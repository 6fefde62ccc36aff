# SPDX-License-Identifier: Apache-2.0
"""Where the tensors inside a rewritten model come from: onnxruntime on the CPU, or engines with more outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto
from padfree.onnx_tools import load_model, without_functions
from padfree.onnx_tools.files import Model, open_session, write_metadata
from padfree.onnx_tools.precision import infer_element_types, with_rounding
from padfree.runtime import Array, Session

from ..engine.linear import AUTO, FOLDED, apply_linear, choose_linear
from ..engine.preparation import metadata_of

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Inside(Protocol):
    """A rewritten model that gives its intermediate tensors.

    Attributes:
        graph: the model's nodes, padfree's among them.
        tensors: the names of the tensors that may be asked for.
        chunk: how many may be asked for at a time.
    """

    graph: GraphProto
    tensors: Collection[str]
    chunk: int

    def fetch(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The tensors of these names on one batch."""


class CpuInside:
    """A rewritten file in onnxruntime, nothing fused. Half precision files round every tensor where it is made."""

    chunk = 16  # tensors: 16 x [4096, 3072] fp32 are 0.8 GB

    def __init__(self, path: Path, precision: str) -> None:
        model = load_model(path)
        self.graph = without_functions(model).graph
        self.tensors: Collection[str] = [name for node in self.graph.node for name in node.output if name]
        self._session = open_marked(
            model if precision == "fp32" else with_rounding(Model(model), precision).proto, self.tensors
        )

    def fetch(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The tensors of these names on one batch."""
        return list(self._session.run(list(names), dict(feeds)))


class EngineInside:
    """Engines of a packed model that give other tensors as outputs: one build per chunk, kept for the next batch.

    What TensorRT would fuse across a tensor that is an output, it does not fuse here.

    Args:
        model: rewritten, as the engine is built from it.
        precision: the model's.
        build: makes the file that Session runs from a model with more outputs.
        device: CUDA device.
    """

    chunk = 64  # tensors: two builds for BERT-base

    def __init__(self, model: ModelProto, precision: str, build: Callable[[ModelProto], Path], *, device: int) -> None:
        self.graph = without_functions(model).graph
        self._model = model
        types = infer_element_types(without_functions(model), precision)
        names = [name for node in self.graph.node for name in node.output if name]
        self._types = {name: types[name] for name in names if types[name] in FLOATS}
        self.tensors: Collection[str] = self._types
        self._build = build
        self._device = device
        self._sessions: dict[tuple[str, ...], Session] = {}

    def fetch(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The tensors of these names on one batch."""
        key = tuple(names)
        if key not in self._sessions:
            path = self._build(with_outputs(self._model, {name: self._types[name] for name in names}))
            self._sessions[key] = Session(path, device=self._device, cuda_graphs=False)
        outputs = self._sessions[key].backend.run(dict(feeds))
        return [np.array(outputs[name], np.float32) for name in names]


def with_outputs(model: ModelProto, types: Mapping[str, int]) -> ModelProto:
    """A copy of a rewritten model with these intermediate tensors as outputs, named in its metadata too."""
    result = ModelProto()
    result.CopyFrom(model)
    metadata = metadata_of(result)
    output_names = {value.name for value in result.graph.output}
    for name, kind in types.items():
        if name not in output_names:
            result.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).name
            metadata["outputs"].append({"name": name, "layout": "packed", "dtype": dtype, "shape": None})
    write_metadata(result, metadata)
    return result


def open_marked(model: ModelProto, names: Sequence[str]) -> Any:
    """An onnxruntime session with more outputs; one execution order of all nodes, nothing fused."""
    marked_model = ModelProto()
    marked_model.CopyFrom(model)
    output_names = {value.name for value in marked_model.graph.output}
    marked_model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in output_names
    )
    return open_session(Model(marked_model), optimize=False)


def inside_engine(path: Path, precision: str, build: Callable[[ModelProto], Path], device: int) -> Inside:
    """The inside of the engine that a rewritten file becomes, with padfree's GEMMs and norms where it can be."""
    from padfree.runtime.gpu.cuda import open_device

    model = load_model(path)
    linear = choose_linear(AUTO, model, precision, open_device(device))
    linear_model = apply_linear(linear, Model(model), norms=FOLDED).whole()
    return EngineInside(linear_model, precision, build, device=device)
