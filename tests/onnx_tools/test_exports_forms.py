# SPDX-License-Identifier: Apache-2.0
"""Unusual spellings that are legal ONNX: each is rewritten, or refused for a reason that is true."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.precision import rounded

from . import exports
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


@both
@pytest.mark.parametrize("name", ["n_if_const", "n_ir3", "n_out_is_input", "n_overload_meta", "n_sparse_init"])
def test_spellings(name: str, interface: str) -> None:
    result = exports.assert_right(exports.load(name), exports.inputs_of(name), interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 2


@both
def test_nodes_of_one_name(interface: str) -> None:
    """onnxruntime refuses them where there are subgraphs or functions: the truth is the file with other names."""
    model = exports.load("n_samenames")
    assert len({node.name for node in model.graph.node}) == 1
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 2
    assert {node.name for node in model.graph.node} == {"node"}


def test_inputs_with_names_of_the_packed_interface() -> None:
    model = exports.load("n_name_seq_lens")
    exports.assert_right(model, exports.inputs_of("n_name_seq_lens"), "padded", strict=True)
    with pytest.raises(RewriteError, match="input 'seq_lens' has the name of an input that the packed interface adds"):
        rewrite(model)
