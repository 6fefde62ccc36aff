# SPDX-License-Identifier: Apache-2.0
"""What of a model's tensors is constant: weights, Constants, and what an Identity hands on of them.

torch's exporter writes weights of equal values once, with an Identity for every other name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, numpy_helper

from ..files.model import Model

_STANDARD = ("", "ai.onnx")

Array = npt.NDArray[Any]


class Constants:
    """The constants of one model, by the names of their tensors."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._initializers = {item.name: item for item in model.proto.graph.initializer}
        self._made = dict[str, TensorProto]()
        self._handed_on = dict[str, str]()
        for node in model.proto.graph.node:
            if node.domain in _STANDARD and node.op_type == "Identity":
                self._handed_on[node.output[0]] = node.input[0]
            elif (value := _value(node)) is not None:
                self._made[node.output[0]] = value

    def __contains__(self, name: str) -> bool:
        found = self._origin(name)
        return found in self._initializers or found in self._made

    def kind(self, name: str) -> int:
        """ONNX's number for its type; 0 where it is computed."""
        found = self._origin(name)
        tensor = self._initializers.get(found, self._made.get(found))
        return int(tensor.data_type) if tensor is not None else 0

    def array(self, name: str) -> Array | None:
        """Its values, not to be written to; None where it is computed."""
        found = self._origin(name)
        if found in self._initializers:
            return np.asarray(self._model.array(self._initializers[found]))
        return np.asarray(numpy_helper.to_array(self._made[found])) if found in self._made else None

    def _origin(self, name: str) -> str:
        while name in self._handed_on:
            name = self._handed_on[name]
        return name


def _value(node: NodeProto) -> TensorProto | None:
    """What a Constant holds, where it is a tensor or one number."""
    if node.op_type != "Constant" or node.domain not in _STANDARD:
        return None
    found = node.attribute[0]
    if found.name == "value_float":
        return numpy_helper.from_array(np.array(found.f, np.float32))
    return found.t if found.name == "value" else None
