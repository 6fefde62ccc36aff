# SPDX-License-Identifier: Apache-2.0
"""Graphs of packed products and norms, as they are before the passes that fold more into the products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper
from padfree.onnx_tools.analysis.graph import tidy
from padfree.onnx_tools.files.graph_io import export_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.operators import DOMAIN, check_nodes, make_node, with_functions
from padfree.onnx_tools.passes import PassResult
from padfree.onnx_tools.precision.element_types import check_element_types

from tests.onnx_tools.agreement import run
from tests.support.samples import PLAIN_NORM

WIDTH = 64
EPSILON = 0.1  # so large that a missing one shows
ELEMENTS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
DTYPES = {"fp32": "float32", "fp16": "float16"}
_FP32 = {"rtol": 1e-5, "atol": 1e-5}


class PackedGraph:
    """Writes a graph on the input "x" [T,64]; all constants have one type, unless another is requested."""

    def __init__(self, precision: str = "fp32") -> None:
        self.dtype = DTYPES[precision]
        self.nodes: list[Any] = []
        self.constants: list[TensorProto] = []
        self._rng = np.random.default_rng(1)

    def constant(self, *shape: int, center: float = 0.0, scale: float = 0.3) -> str:
        return self.initializer(center + self._rng.standard_normal(shape) * scale)

    def initializer(self, values: Any, dtype: str = "") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values).astype(dtype or self.dtype), name))
        return name

    def op(self, op: str, *inputs: str) -> str:
        output = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=output))
        return output

    def padfree(self, op: str, name: str, inputs: list[str], *, outputs: int = 1, **attributes: Any) -> str:
        """The first output of an operator; empty inputs are left out."""
        output = f"{name}{len(self.nodes)}"
        items = [output, f"{output}_total"][:outputs]
        self.nodes.append(make_node(op, [item for item in inputs if item], items, name=output, **attributes))
        return output

    def linear(
        self,
        x: str,
        columns: int = WIDTH,
        *,
        weight: str = "",
        rows: int = WIDTH,
        bias: str = "random",
        activation: str = "none",
        residual: str = "",
        gated: bool = False,
    ) -> str:
        """`bias` is a name, "random", or empty."""
        bias = self.constant(columns) if bias == "random" else bias
        weight = weight or self.constant(rows, columns, scale=0.1)
        flags = {"has_bias": int(bool(bias)), "has_residual": int(bool(residual)), "gated": int(gated)}
        flags |= dict.fromkeys(("has_x_moments", "has_residual_moments", "has_moments", "rms", "rotary_features"), 0)
        epsilons = {"x_epsilon": 0.0, "residual_epsilon": 0.0}
        return self.padfree(
            "PadfreeLinear", "linear", [x, weight, bias, residual], activation=activation, **flags, **epsilons
        )

    def norm(
        self,
        x: str,
        residual: str = "",
        *,
        bias: str = "",
        gamma: str = "",
        beta: bool = True,
        rms: int = 0,
        sum_output: bool = False,
        width: int = WIDTH,
    ) -> str:
        gamma = gamma or self.constant(width, center=1.0)
        flags = {"has_bias": int(bool(bias)), "has_residual": int(bool(residual)), "has_beta": int(beta), "rms": rms}
        attributes = {**PLAIN_NORM, **flags, "has_sum": int(sum_output), "epsilon": EPSILON}
        return self.padfree(
            "PadfreeLayerNorm",
            "norm",
            [x, bias, residual, gamma, self.constant(width) if beta else ""],
            outputs=2 if sum_output else 1,
            **attributes,
        )

    def inputs(self) -> list[ValueInfoProto]:
        return [helper.make_tensor_value_info("x", ELEMENTS[self.dtype], ["T", WIDTH])]

    def model(self, *outputs: str) -> ModelProto:
        values = [helper.make_tensor_value_info(name, ELEMENTS[self.dtype], None) for name in outputs]
        graph = helper.make_graph(self.nodes, "packed", self.inputs(), values, self.constants)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run_passes(
    model: ModelProto, precision: str, *passes: Callable[[gs.Graph, str], PassResult]
) -> tuple[ModelProto, list[PassResult]]:
    """The model after the passes, with its nodes and types checked, and the passes' results."""
    graph, results = gs.import_onnx(model), list[PassResult]()
    for step in passes:
        results.append(step(graph, precision))
        tidy(graph)
    rewritten = export_model(graph, Model(model)).whole()
    check_nodes(rewritten)
    check_element_types(rewritten, precision)
    return rewritten, results


def operators(model: ModelProto) -> list[str]:
    return [node.op_type.removeprefix("Padfree") for node in model.graph.node]


def activations(tokens: int, precision: str) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((tokens, WIDTH)).astype(DTYPES[precision])


def assert_same(
    model: ModelProto, rewritten: ModelProto, precision: str, feeds: dict[str, np.ndarray], fp16: Mapping[str, float]
) -> None:
    """Both models give the same in onnxruntime, in fp16 within the tolerance `fp16`."""
    before, after = (run(with_functions(item, precision), feeds) for item in (model, rewritten))
    for wanted, actual in zip(before, after, strict=True):
        assert wanted.dtype == actual.dtype
        np.testing.assert_allclose(actual, wanted, **(_FP32 if precision == "fp32" else fp16))
