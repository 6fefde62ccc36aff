# SPDX-License-Identifier: Apache-2.0
"""Runs the few nodes that make a tensor of positions or sizes, for sequences of any length without padding."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from ..files.model import Model
from ..files.ort_session import open_session
from .graph import STANDARD_DOMAINS, dtype_name, is_standard
from .limits import limit_of
from .symbolic import Analysis, Index, Poly

Array = npt.NDArray[np.int64]

# Sequences of one id throughout: positions that skip an id for padding are counted in the others. What chooses from no
# table, a mask, is 0 in one half of them and 1 in the other.
_IDS = 8


class NotComputedError(Exception):
    """Raised where the nodes do not run for sequences of a length."""


class ComputedNumbers:
    """The numbers of a tensor, or of a column of its last axis, by the length of the sequences.

    `key` is the same for tensors that are computed alike, as every layer may do it again.
    """

    def __init__(
        self, model: ModelProto, sizes: Mapping[str, tuple[Array, str]], tokens: Mapping[str, int | None],
        types: Mapping[str, str], column: int | None,
    ) -> None:  # fmt: skip
        self.key = _key(model, sizes)
        self._model = model
        self._session: ort.InferenceSession | None = None
        self._sizes = sizes  # of what is known of the tensor's origins: the formulas and the type
        self._tokens = tokens  # of the inputs: how many values they take, None for what chooses from no table
        self._types = types
        self._column = column
        self._found: dict[int, tuple[int, int]] = {}

    def __call__(self, length: int) -> tuple[int, int]:
        """The smallest and the largest number. Raises NotComputedError."""
        if length not in self._found:
            self._found[length] = self._run(length)
        return self._found[length]

    def _run(self, length: int) -> tuple[int, int]:
        batch = 2 * _IDS if self._tokens else 1
        known = {"B": batch, "S": length}
        feeds = {
            name: np.vectorize(lambda item: item.evaluate(lambda size: known[size]), otypes=[np.int64])(formulas)
            .reshape(formulas.shape)
            .astype(dtype)
            for name, (formulas, dtype) in self._sizes.items()
        }
        for name, limit in self._tokens.items():
            row = np.arange(batch)
            column = row // _IDS if limit is None else np.minimum(row % _IDS, limit - 1)
            feeds[name] = np.broadcast_to(column[:, None], (batch, length)).astype(self._types[name])
        try:
            self._session = self._session or open_session(Model(self._model), optimize=False)
            values = self._session.run(None, feeds)[0]
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise NotComputedError(str(error)) from error
        numbers = values if self._column is None else values[..., self._column]
        return int(numbers.min(initial=0)), int(numbers.max(initial=0))


def computed_numbers(
    graph: gs.Graph, analysis: Analysis, tensor: gs.Tensor, column: int | None
) -> ComputedNumbers | None:
    """The numbers of an integer tensor of a sorted graph.

    None where they do not come from lengths, ids and masks: where nothing depends on these, or activations take part.
    """
    needed, constants = set[int](), dict[str, gs.Constant]()
    sizes, tokens = dict[str, tuple[Array, str]](), dict[str, gs.Tensor]()
    seen, waiting = {tensor.name}, [tensor]
    while waiting:
        current = waiting.pop()
        formulas = _formulas(analysis, current)
        if isinstance(current, gs.Constant):
            constants[current.name] = current
        elif formulas is not None:
            sizes[current.name] = formulas
        elif not current.inputs:
            tokens[current.name] = current
        else:
            node = current.inputs[0]
            if node.domain not in STANDARD_DOMAINS or _takes_rows(analysis, node):
                return None
            needed.add(id(node))
            waiting += [item for item in node.inputs if not item.is_empty() and item.name not in seen]
            seen.update(item.name for item in node.inputs)
    if not needed or not (sizes or tokens) or any(list(item.shape or ()) != ["B", "S"] for item in tokens.values()):
        return None
    types = {name: str(dtype_name(item.dtype)) for name, item in tokens.items()}
    limits = {name: limit_of(graph, name) for name in tokens}
    model = ModelProto(ir_version=10, opset_import=[onnx.helper.make_opsetid("", int(graph.opset))])
    model.graph.name = "numbers"
    for node in graph.nodes:
        if id(node) in needed:
            model.graph.node.append(OnnxExporter.export_node(node))
    for name, dtype in [*types.items(), *((name, dtype) for name, (_, dtype) in sizes.items())]:
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, element, None))
    for name, constant in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constant.values), name))
    model.graph.output.append(ValueInfoProto(name=tensor.name))
    return ComputedNumbers(model, sizes, limits, types, column)


def _key(model: ModelProto, sizes: Mapping[str, tuple[Array, str]]) -> str:
    """What the result is computed from and how, without the names of tensors but those of the inputs."""
    keys = {
        name: f"{dtype} {formulas.shape} {[str(item) for item in formulas.flat]}"
        for name, (formulas, dtype) in sizes.items()
    }
    for tensor in model.graph.initializer:
        content = TensorProto.FromString(tensor.SerializeToString())
        content.name = ""
        keys[tensor.name] = hashlib.sha256(content.SerializeToString()).hexdigest()
    for node in model.graph.node:
        attributes = sorted(str(item) for item in node.attribute)
        text = repr((node.op_type, attributes, [keys.get(name, name) for name in node.input]))
        made = hashlib.sha256(text.encode()).hexdigest()
        keys.update({name: f"{made} {place}" for place, name in enumerate(node.output)})
    return keys[model.graph.output[0].name]


def _takes_rows(analysis: Analysis, node: gs.Node) -> bool:
    """Whether the node looks up rows of numbers: activations begin there."""
    if not is_standard(node, "Gather") or not analysis[node.inputs[0]].constant:
        return False
    return (analysis[node.inputs[0]].rank or 0) > 1 and (analysis[node.inputs[0]].dtype or "").startswith("float")


def _formulas(analysis: Analysis, tensor: gs.Tensor) -> tuple[Array, str] | None:
    """Every element of a small integer tensor as a sum of sizes, and its type; None where they are not known."""
    facts = analysis[tensor]
    if isinstance(tensor, gs.Constant) or facts.elements is None or not (facts.dtype or "").startswith("int"):
        return None
    found = np.empty(facts.elements.shape, dtype=object)
    for place in np.ndindex(*found.shape):
        item = facts.elements[place]
        poly = item.poly if isinstance(item, Index) else Poly.atom("?")
        if not poly.atoms() <= {"B", "S"}:
            return None
        found[place] = poly
    return found, str(facts.dtype)
