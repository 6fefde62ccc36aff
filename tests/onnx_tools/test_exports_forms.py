# SPDX-License-Identifier: Apache-2.0
"""Unusual spellings that are legal ONNX: each is rewritten, or refused for a reason that is true."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.precision import rounded

from .agreement import assert_agree
from .encoder import one_layer
from .test_rewrite import INTERFACES, with_output

both = pytest.mark.parametrize("interface", INTERFACES)


@both
def test_folded_scalars_stay_scalars(interface: str) -> None:
    """Gather by a scalar takes an axis away, Range takes nothing but scalars."""
    builder, hidden = one_layer()
    index = builder.op("Mul", builder.constant(0, np.int64), builder.constant(3, np.int64))
    first = builder.op("Gather", hidden, index, axis=1)
    zero, one = (builder.op("Cast", builder.constant(value), to=TensorProto.INT64) for value in (0.0, 1.0))
    sizes = builder.op("Shape", hidden)
    width = builder.op("Gather", sizes, builder.op("Transpose", builder.constant(2, np.int64)), axis=0)
    steps = builder.op("Range", zero, width, one)
    count = builder.op("Concat", builder.op("Unsqueeze", width, builder.axes(0)), builder.axes(1), axis=0)
    weights = builder.op("Reshape", builder.op("Cast", steps, to=TensorProto.FLOAT), count)
    model = with_output(builder.op("MatMul", first, weights), builder, ["batch", 1])
    for precision in ("fp32", "fp16", "bf16"):
        result = rewrite(model, interface=interface, precision=precision)
        if precision == "fp32":
            assert_agree(model, result, tolerance=2e-4)  # weights up to 15


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_rounding_keeps_shapes(precision: str) -> None:
    for shape in ((), (1,), (2, 0), (2, 3)):
        assert rounded(np.full(shape, 1.5, np.float32), precision).shape == shape
