# SPDX-License-Identifier: Apache-2.0
"""Adds standard operators and constants to the message of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, helper, numpy_helper

from .node_builder import NodeBuilder


class MessageBuilder(NodeBuilder[str]):
    """Writes nodes after those of a graph; every method returns the name of a result or a constant.

    Args:
        graph: of a model, or a new one by default.
        prefix: what new names begin with.
        opset: the version of the standard operators.
    """

    def __init__(self, graph: GraphProto | None = None, prefix: str = "", opset: int = 17) -> None:
        self.graph = GraphProto() if graph is None else graph
        self.prefix = prefix
        self.opset = opset
        self._used_names = {item.name for item in (*self.graph.input, *self.graph.initializer)}
        self._used_names.update(name for node in self.graph.node for name in node.output)

    def constant(self, values: npt.ArrayLike, dtype: npt.DTypeLike = np.float32, name: str = "") -> str:
        """A constant of any shape."""
        name = name or self._fresh("constant", len(self.graph.initializer))
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(values, dtype, order="C"), name))
        return name

    def _constant(self, values: npt.NDArray[Any]) -> str:
        return self.constant(values, values.dtype)

    def _add(self, op: str, inputs: Sequence[str], output: str | None, stem: str, attributes: Mapping[str, Any]) -> str:
        name = output or self._fresh(stem or op, len(self.graph.node))
        self.graph.node.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _fresh(self, kind: str, number: int) -> str:
        while (name := f"{self.prefix}{kind}_{number}") in self._used_names:
            number += 1
        self._used_names.add(name)
        return name
