# SPDX-License-Identifier: Apache-2.0
"""What TensorRT's parser refuses is written with other operators, and computes the same."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, parser
from padfree.builder.engine.lowering.parser_gaps import spell_for_parser

from tests.support.messages import lower


def run(model: ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize("attributes", ["", "<k = 1>", "<k = -2, dtype = 7>", "<dtype = 11>"])
def test_identity_matrices_of_sizes_that_vary(attributes: str) -> None:
    kind = {"7": "int64", "11": "double"}.get(attributes[-3:].strip("= >"), "float")
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[M,N] x) => ({kind}[M,N] y) {{ z = EyeLike {attributes} (x)  y = Identity(z) }}"""
    model, x = parser.parse_model(text), np.zeros((4, 6), np.float32)
    wanted = run(model, x)
    assert wanted.sum() >= 2
    lower(spell_for_parser, model)
    assert "EyeLike" not in {node.op_type for node in model.graph.node}
    actual = run(model, x)
    assert actual.dtype == wanted.dtype
    np.testing.assert_array_equal(actual, wanted)
