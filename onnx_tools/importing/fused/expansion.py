# SPDX-License-Identifier: Apache-2.0
"""Writes the standard operators that one fused operator stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor, argument, disconnect, is_output, made_by, node_name
from ...analysis.symbolic import Facts, Shape, learn
from ...files import NodeBuilder


class NotImportable(Exception):
    """Raised for a node in a form that is not imported; the message is the reason."""


class Expansion(NodeBuilder[gs.Tensor]):
    """One fused node, and the nodes that take its place.

    Constants are float32: half precision files are widened before they are imported.
    """

    def __init__(self, editor: Editor, facts: dict[str, Facts], node: gs.Node) -> None:
        self.node = node
        self.opset = editor.opset
        self._editor = editor.with_stem(node_name(node))
        self._facts = facts

    def optional_input(self, position: int) -> gs.Tensor | None:
        """Input number `position`, or None where it is left out."""
        return argument(self.node, position)

    def input(self, position: int, what: str) -> gs.Tensor:
        """Input number `position`, which must be there."""
        tensor = self.optional_input(position)
        if tensor is None:
            raise NotImportable(f"it has no {what} (input {position})")
        return tensor

    def refuse_inputs(self, **positions: int) -> None:
        """Refuses inputs that no encoder needs, by name."""
        for what, position in positions.items():
            if self.optional_input(position) is not None:
                raise NotImportable(f"it reads {what} (input {position}), which an encoder does not have")

    def is_read(self, position: int) -> bool:
        """Whether anything reads output number `position`."""
        if position >= len(self.node.outputs) or self.node.outputs[position].is_empty():
            return False
        tensor = self.node.outputs[position]
        return bool(tensor.outputs) or is_output(self._editor.graph, tensor)

    def refuse_outputs(self, **positions: int) -> None:
        """Refuses outputs that are read, by name."""
        for what, position in positions.items():
            if self.is_read(position):
                raise NotImportable(f"its {what} (output {position}) is read")

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int):
            raise NotImportable(f"its attribute {name} is {value!r}, not an integer")
        return value

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int | float):
            raise NotImportable(f"its attribute {name} is {value!r}, not a number")
        return float(value)

    def shape(self, tensor: gs.Tensor, what: str) -> Shape:
        """The shape of a tensor, whose rank must be known."""
        sizes = self._facts.get(tensor.name, Facts()).shape
        if sizes is None:
            raise NotImportable(f"the rank of its {what} '{tensor.name}' is not known")
        return sizes

    def width(self, tensor: gs.Tensor, what: str) -> int:
        """The size of a tensor's last axis, which must be known."""
        shape = self.shape(tensor, what)
        size = shape[-1].constant() if shape else None
        if size is None or size <= 0:
            raise NotImportable(f"the last axis of its {what} '{tensor.name}' has no known size above 0")
        return size

    def is_integer(self, tensor: gs.Tensor) -> bool:
        """Whether the tensor is known to hold integers."""
        return (self._facts.get(tensor.name, Facts()).dtype or "").startswith("int")

    def constant(self, values: Any, dtype: Any = np.float32) -> gs.Tensor:
        """A constant, float32 unless said otherwise."""
        return self._constant(np.array(values, dtype=dtype))

    def _constant(self, values: np.ndarray) -> gs.Tensor:
        return self._editor.constant(f"{node_name(self.node)}_constant", values)

    def _add(
        self, op: str, inputs: Sequence[gs.Tensor], output: gs.Tensor | None, stem: str, attributes: Mapping[str, Any]
    ) -> gs.Tensor:
        result = self._editor.op(op, *inputs, output=output, stem=stem, **attributes)
        learn(self._facts, self._editor.graph.nodes[-1])
        return result

    def finish(self, results: gs.Tensor | Sequence[gs.Tensor | None]) -> None:
        """Makes the results the node's outputs, in their order."""
        results = [results] if isinstance(results, gs.Tensor) else results
        input_names = [
            (tensor, self.node.outputs[position])
            for position, tensor in enumerate(results)
            if tensor is not None and self.is_read(position)
        ]
        disconnect(self.node)
        for tensor, output in input_names:
            self.op("Identity", tensor, output=output)

    # Parts that several operators need.

    def sum(self, *terms: gs.Tensor | None) -> gs.Tensor:
        """The sum of those terms that are there, from left to right."""
        first, *others = [term for term in terms if term is not None]
        for term in others:
            first = self.op("Add", first, term)
        return first

    def columns(self, x: gs.Tensor, start: int, end: int, step: int = 1) -> gs.Tensor:
        """A part of a tensor along its last axis; the part of a constant is a constant."""
        if isinstance(x, gs.Constant):
            return self.constant(x.values[..., start:end:step])
        return self.op("Slice", x, [start], [end], [-1], [step])

    def uncast(self, tensor: gs.Tensor) -> gs.Tensor:
        """The integers before casts to other integer types, which fused operators ask for."""
        node = made_by(tensor, "Cast")
        if node is None or not (self.is_integer(tensor) and self.is_integer(node.inputs[0])):
            return tensor
        return self.uncast(node.inputs[0])
