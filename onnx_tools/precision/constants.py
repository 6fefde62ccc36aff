# SPDX-License-Identifier: Apache-2.0
"""The float32 constants of a graph whose type changes: each is stored once, in the type or types that nodes read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto

from ..errors import RewriteError
from ..files.deferred_data import DeferredData
from ..files.model import Model
from ..files.weights import LARGE_BYTES, bytes_of_array
from ..operators.functions import ACT_TYPES
from .blocks import largest_of, on_all_cores
from .halves import to_float
from .ranges import LARGEST, unfit_reason
from .rounded_weights import round_values, survives

Floats = npt.NDArray[np.float32]


class HalfConstants:
    """The float32 constants of one model; its initializers get data when all nodes have said how they read them.

    Args:
        model: gets the data of its initializers from `store`.
        original: the model that has their values.
        precision: the new type, "fp16" or "bf16".
    """

    def __init__(self, model: Model, original: Model, precision: str) -> None:
        self._model, self._original, self._precision = model, original, precision
        self._originals = {tensor.name: tensor for tensor in original.proto.graph.initializer}
        self._tensors = {
            tensor.name: self._originals.get(tensor.name, tensor)
            for tensor in model.proto.graph.initializer
            if tensor.data_type == TensorProto.FLOAT
        }
        self._trials: dict[str, npt.NDArray[Any]] = {}  # what constants become if they are read in the new type
        self._rounded: dict[str, npt.NDArray[Any] | DeferredData] = {}  # constants that are read in the new type
        self._read_as_float32: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def values(self, name: str) -> Floats:
        """The values of a constant."""
        return to_float(self._original.array(self._tensors[name]))

    def survives(self, name: str) -> bool:
        """Whether a constant can be rounded (rounded_weights.py)."""
        return self._exact(name) is not None or survives(self.values(name), self._precision)

    def add(self, tensor: TensorProto) -> None:
        """Adds a constant, which holds its values itself."""
        self._model.proto.graph.initializer.append(tensor)
        self._tensors[tensor.name] = tensor

    def find_unfit(self, names: Iterable[str]) -> dict[str, str]:
        """The constants of these names that the new type cannot hold, with the reasons."""

        def trial(name: str) -> tuple[npt.NDArray[Any], str]:
            values = self.values(name)
            content = round_values(values, self._precision)
            return content, unfit_reason(values, self._precision, rounded=content)

        reasons = {}
        names_here = sorted(name for name in set(names) if name in self and self._exact(name) is None)
        for name, (content, reason) in zip(names_here, on_all_cores(trial, names_here), strict=True):
            if reason:
                reasons[name] = reason
            else:
                self._trials[name] = content
        return reasons

    def keep(self, name: str) -> None:
        """Notes that a constant is read as float32."""
        self._read_as_float32.add(name)

    def rounded_name(self, name: str, reader: NodeProto) -> str:
        """The name under which a node reads a constant in the new type. Raises RewriteError where it overflows."""
        exact = self._exact(name)
        if exact is not None:
            self._rounded[name] = exact
        elif name not in self._rounded:
            trial = self._trials.pop(name, None)
            if trial is None or self._precision != "fp16":  # otherwise it was found to fit
                self._refuse_overflow(name, self.values(name), reader)
            self._rounded[name] = round_values(self.values(name), self._precision) if trial is None else trial
        return f"{name}.{self._precision}"

    def _exact(self, name: str) -> DeferredData | None:
        """A constant's numbers in the new type, where the file that they come from has them in that type."""
        data = self._original.weights.held_for(self._tensors[name])
        return data.narrow.get(ACT_TYPES[self._precision]) if isinstance(data, DeferredData) else None

    def _refuse_overflow(self, name: str, values: Floats, reader: NodeProto) -> None:
        largest = largest_of(values)
        if largest > LARGEST[self._precision]:
            advice = "bf16 or fp32" if self._precision == "fp16" else "fp32"
            raise RewriteError(
                f"weight '{name}' of {reader.op_type} '{reader.name or reader.output[0]}' holds {largest:g}, "
                f"{self._precision} holds at most {LARGEST[self._precision]:g}; choose precision {advice}"
            )

    def store(self) -> None:
        """Puts the constants in; those in the new type keep their names, unless they are read as float32 too."""
        graph = self._model.proto.graph
        new_names = {f"{name}.{self._precision}": name for name in self._rounded if name not in self._read_as_float32}
        for node in graph.node:
            for position, name in enumerate(node.input):
                if name in new_names:
                    node.input[position] = new_names[name]
        new_values = set(new_names.values())
        initializers = [
            self._originals.get(tensor.name, tensor) for tensor in graph.initializer if tensor.name not in new_values
        ]
        del graph.initializer[:]
        graph.initializer.extend(initializers)
        for name in list(self._rounded):
            copy, dims = f"{name}.{self._precision}", self._tensors[name].dims
            content = self._rounded.pop(name)  # so that it is not there twice
            tensor = graph.initializer.add(
                name=new_names.get(copy, copy), data_type=ACT_TYPES[self._precision], dims=dims
            )
            if isinstance(content, DeferredData):
                self._model.weights.hold(tensor, content)
            elif content.nbytes >= LARGE_BYTES:
                self._model.weights.hold(tensor, bytes_of_array(content))
            else:
                tensor.raw_data = content.tobytes()
