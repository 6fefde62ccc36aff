# SPDX-License-Identifier: Apache-2.0
"""The few nodes that make a tensor, taken out of their graph and run on their own for any sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from ..files import Array, Model, open_session
from .graph import STANDARD_DOMAINS, dtype_name, is_standard
from .symbolic import Analysis, Index, Poly

_MOST_PLANNED_NODES = 256
"""The most nodes for which onnxruntime plans memory; the planner's time grows with the square of a chain's length."""


class NotComputedError(Exception):
    """Raised when the nodes fail to run for sequences of some length."""


class Computation:
    """The nodes that lead from sizes, inputs of the graph and other known tensors to one tensor.

    `tokens` are the types of the inputs [B,S] that they read. `key` is the same for tensors that are computed alike:
    every layer may repeat the same computation.
    """

    def __init__(
        self,
        model: ModelProto,
        sizes: Mapping[str, tuple[Array, str]],
        tokens: Mapping[str, str],
        names: Mapping[str, str],
    ) -> None:
        self.tokens = tokens
        self._model = model
        self._sizes = sizes  # name of a known integer tensor -> its formulas and type
        self._input_names = names
        self._session: ort.InferenceSession | None = None
        self.key = _key(model, sizes, names)

    @property
    def sizes(self) -> set[str]:
        """Which of B and S the tensor depends on."""
        return {str(atom) for formulas, _ in self._sizes.values() for item in formulas.flat for atom in item.atoms()}

    def run(self, batch: int, length: int, values: Mapping[str, Array]) -> Array:
        """The tensor for these B and S, from the `values` of inputs and known tensors. Raises NotComputedError."""
        dims = {"B": batch, "S": length}
        feeds = {
            name: np.vectorize(lambda item: item.evaluate(lambda size: dims[size]), otypes=[np.int64])(formulas)
            .reshape(formulas.shape)
            .astype(dtype)
            for name, (formulas, dtype) in self._sizes.items()
        }
        for name, dtype in [*self.tokens.items(), *self._input_names.items()]:
            feeds[name] = np.ascontiguousarray(values[name], dtype)  # converted in one pass: there may be 100 MB
        try:
            if self._session is None:
                keeps_memory = len(self._model.graph.node) > _MOST_PLANNED_NODES
                self._session = open_session(Model(self._model), optimize=False, keeps_memory=keeps_memory)
            return np.asarray(self._session.run(None, feeds)[0])
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise NotComputedError(str(error)) from error


def computation_of(
    graph: gs.Graph,
    analysis: Analysis,
    tensor: gs.Tensor,
    *,
    known_names: Collection[str] = (),
    tables: bool = True,
    is_fixed: bool = False,
) -> Computation | None:
    """How a tensor of a sorted graph is made from sizes, inputs [B,S] and the tensors in `known_names`.

    None where it depends on none of these (unless `is_fixed` allows that), on other inputs, or on operators that are
    not standard; without `tables` also where rows of numbers are looked up: activations begin there.
    """
    needed_ids, constants = set[int](), dict[str, gs.Constant]()
    sizes, tokens, cuts = dict[str, tuple[Array, str]](), dict[str, gs.Tensor](), dict[str, gs.Tensor]()
    seen, waiting = {tensor.name}, [tensor]
    while waiting:
        current = waiting.pop()
        formulas = _formulas(analysis, current)
        if isinstance(current, gs.Constant):
            constants[current.name] = current
        elif current.name in known_names:
            cuts[current.name] = current
        elif formulas is not None:
            sizes[current.name] = formulas
        elif not current.inputs:
            tokens[current.name] = current
        else:
            node = current.inputs[0]
            if node.domain not in STANDARD_DOMAINS or (not tables and _takes_rows(analysis, node)):
                return None
            needed_ids.add(id(node))
            waiting += [item for item in node.inputs if not item.is_empty() and item.name not in seen]
            seen.update(item.name for item in node.inputs)
    if not needed_ids or not (sizes or tokens or cuts or is_fixed):
        return None
    if any(list(item.shape or ()) != ["B", "S"] for item in tokens.values()):
        return None
    types = {name: str(dtype_name(item.dtype)) for name, item in tokens.items()}
    kinds = {name: str(analysis[item].dtype) for name, item in cuts.items()}
    model = ModelProto(ir_version=10, opset_import=[onnx.helper.make_opsetid("", int(graph.opset))])
    model.graph.name = "numbers"
    for node in graph.nodes:
        if id(node) in needed_ids:
            model.graph.node.append(OnnxExporter.export_node(node))
    size_inputs = [(name, dtype) for name, (_, dtype) in sizes.items()]
    for name, dtype in [*types.items(), *kinds.items(), *size_inputs]:
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, element, None))
    for name, constant in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constant.values), name))
    model.graph.output.append(ValueInfoProto(name=tensor.name))
    return Computation(model, sizes, types, kinds)


def _key(model: ModelProto, sizes: Mapping[str, tuple[Array, str]], names: Mapping[str, str]) -> str:
    """Identifies what the result is computed from and how; of tensors' names, only those of inputs count."""
    keys = {
        name: f"{dtype} {formulas.shape} {[str(item) for item in formulas.flat]}"
        for name, (formulas, dtype) in sizes.items()
    }
    keys |= {name: f"given {index} {names[name]}" for index, name in enumerate(names)}
    for tensor in model.graph.initializer:
        content = TensorProto.FromString(tensor.SerializeToString())
        content.name = ""
        keys[tensor.name] = hashlib.sha256(content.SerializeToString()).hexdigest()
    for node in model.graph.node:
        attributes = sorted(str(item) for item in node.attribute)
        text = repr((node.op_type, attributes, [keys.get(name, name) for name in node.input]))
        digest = hashlib.sha256(text.encode()).hexdigest()
        keys.update({name: f"{digest} {index}" for index, name in enumerate(node.output)})
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
    formulas = np.empty(facts.elements.shape, dtype=object)
    for index in np.ndindex(*formulas.shape):
        item = facts.elements[index]
        poly = item.poly if isinstance(item, Index) else Poly.atom("?")
        if not poly.atoms() <= {"B", "S"}:
            return None
        formulas[index] = poly
    return formulas, str(facts.dtype)
