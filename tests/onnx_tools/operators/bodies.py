# SPDX-License-Identifier: Apache-2.0
"""Runs the bodies of single operators in onnxruntime, on awkward batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools.operators import DOMAIN, OPERATORS, make_node, with_functions

OPSETS = (14, 17, 20, 23)
HEADS, SIZE = 3, 8
WIDTH = HEADS * SIZE
EPSILON = 1e-6
# float32 compared with float64: sums of up to 30 products around 1, and their norms.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}

# (lengths, filler tokens)
BATCHES: dict[str, tuple[list[int], int]] = {
    "ragged": ([5, 1, 9, 3], 0),
    "filler and empty": ([0, 4, 0, 0, 7, 1, 0], 5),
    "one token": ([1], 0),
    "all empty, filler": ([0, 0, 0], 4),
    "all empty, no token": ([0, 0], 0),
    "no sequence": ([], 0),
    "no sequence, filler": ([], 3),
    "long among short": ([1, 1, 30, 1], 2),
}
batches = pytest.mark.parametrize("batch", list(BATCHES))
opsets = pytest.mark.parametrize("opset", OPSETS)


def with_batches(*choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations of the choices, each with three batches: every choice, and most pairs, meet all batches."""
    names = list(BATCHES)
    return [
        (*combination, names[(number + step) % len(names)])
        for number, combination in enumerate(itertools.product(*choices))
        for step in (0, 2, 5)
    ]


_ELEMENT = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def cu_of(batch: str) -> tuple[np.ndarray, int]:
    lens, filler = BATCHES[batch]
    return np.concatenate([[0], np.cumsum(lens)]).astype(np.int32), int(sum(lens)) + filler


def poison(x: np.ndarray, cu: np.ndarray) -> np.ndarray:
    """NaN in every filler row: no result may be affected."""
    x[cu[-1] :] = np.nan
    return x


def model_of(node: onnx.NodeProto, kind: Kind, opset: int) -> onnx.ModelProto:
    def info(name: str, dtype: str, rank: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, _ELEMENT[dtype], [f"{name}_{i}" for i in range(rank)])

    inputs = [info(*item) for item in kind]
    spec = OPERATORS[node.op_type]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    types = [dtype for _, dtype, _ in kind]
    act = next((dtype for dtype in types if dtype in ("float32", "float16")), "int32")
    data = types[0]
    outputs = []
    for name, tensor in zip(node.output, spec.outputs_for(attributes), strict=True):
        dtype = {"act": act, "int32": "int32", "float32": "float32", "act or int32": data}[tensor.type]
        outputs.append(helper.make_tensor_value_info(name, _ELEMENT[dtype], None))
    graph = helper.make_graph([node], "g", inputs, outputs)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    precision = "fp16" if act == "float16" else "fp32"
    return with_functions(helper.make_model(graph, opset_imports=imports, ir_version=8), precision)


Kind = tuple[tuple[str, str, int], ...]
"""An operator's inputs: name, type and rank of each, in the operator's order."""


def run(op: str, feeds: dict[str, np.ndarray], opset: int, **attributes: Any) -> list[np.ndarray]:
    """An operator's outputs; calls that differ only in sizes run in the same session, as a model's batches do."""
    spec = OPERATORS[op]
    names = [f"out_{tensor.name}" for tensor in spec.outputs_for(attributes)]
    expected = [tensor.name for tensor in spec.inputs_for(attributes)]
    assert sorted(expected) == sorted(feeds), "the test feeds what the description asks for"
    kind = tuple((name, str(feeds[name].dtype), feeds[name].ndim) for name in expected)
    return list(_session(op, kind, tuple(names), opset, tuple(sorted(attributes.items()))).run(None, feeds))


@lru_cache(maxsize=64)
def _session(
    op: str, kind: Kind, outputs: tuple[str, ...], opset: int, attributes: tuple[tuple[str, Any], ...]
) -> ort.InferenceSession:
    node = make_node(op, [name for name, _, _ in kind], list(outputs), name="node", **dict(attributes))
    model = model_of(node, kind, opset)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # more threads would only wait for these few numbers, occupying their cores
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def check(actual: np.ndarray, expected: np.ndarray, dtype: type = np.float32, **tolerance: float) -> None:
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, **(tolerance or TOLERANCE))
