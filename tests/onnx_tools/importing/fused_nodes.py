# SPDX-License-Identifier: Apache-2.0
"""Models of one fused onnxruntime operator, and of the standard operators that it is imported as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import ModelProto, helper
from padfree.onnx_tools.importing.standard_form import standardise

BATCH, LENGTH, HEADS, SIZE = 7, 5, 2, 8
WIDTH = HEADS * SIZE
LENGTHS = np.asarray([LENGTH, 3, 1, 2, LENGTH, 4, 1], np.int32)
MASK = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int32)
TOLERANCE = 2e-5  # float32, sums of at most 16 terms in a different order
_SIZES = {BATCH: "B", LENGTH: "S"}

Arrays = Mapping[str, np.ndarray]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def one_node(
    op: str,
    inputs: Arrays,
    outputs: Sequence[int] = (0,),
    *,
    weights: Sequence[str] = (),
    opset: int = 17,
    domain: str = "com.microsoft",
    **attributes: Any,
) -> ModelProto:
    """A model of one node: empty inputs are left out, `weights` are constants, outputs not listed stay unread.

    The sizes B and S are dynamic.
    """
    names = list(inputs)
    variables = [name for name in names if inputs[name].size and name not in weights]
    results = [f"y{i}" for i in range(max(max(outputs) + 1, 2 if op == "EmbedLayerNormalization" else 1))]
    read = [results[i] for i in outputs]
    node = helper.make_node(
        op, [name if inputs[name].size else "" for name in names], results, name="node", domain=domain, **attributes
    )
    types = {name: helper.np_dtype_to_tensor_dtype(inputs[name].dtype) for name in variables}
    dims = {name: [_SIZES.get(size, size) for size in inputs[name].shape] for name in variables}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, types[name], dims[name]) for name in variables],
        [helper.make_empty_tensor_value_info(name) for name in read],
        [helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(inputs[name].dtype), inputs[name].shape,
                            inputs[name].reshape(-1)) for name in weights],
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run(model: ModelProto, feeds: Arrays, outputs: Sequence[int]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    wanted = [f"y{i}" for i in outputs]
    return list(session.run(wanted, {name: array for name, array in feeds.items() if name in names}))


def expand(model: ModelProto) -> ModelProto:
    graph = gs.import_onnx(model)
    standardise(graph)
    result = gs.export_onnx(graph, do_type_check=False)
    assert all(not node.domain for node in result.graph.node)
    assert [item.domain for item in result.opset_import] == [""]
    return result


def assert_same(op: str, inputs: Arrays, outputs: Sequence[int] = (0,), **arguments: Any) -> None:
    model = one_node(op, inputs, outputs, **arguments)
    for a, b in zip(run(model, inputs, outputs), run(expand(model), inputs, outputs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE), np.abs(a - b).max()


NONE = np.zeros(0, np.float32)
X = numbers(BATCH, LENGTH, WIDTH)
