# SPDX-License-Identifier: Apache-2.0
"""Unusual but legal ways to write ONNX: each is rewritten, or refused for a reason that is true."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.precision.rounded_weights import round_values

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support import exports
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, one_layer, with_output
from tests.support.rewritings import Rewritings

both = pytest.mark.parametrize("interface", INTERFACES)


@both
def test_folded_scalars_stay_scalars(interface: str) -> None:
    """Gather by a scalar removes an axis, and Range accepts only scalars."""
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
        assert round_values(np.full(shape, 1.5, np.float32), precision).shape == shape


@both
@pytest.mark.parametrize(
    "name", ["n_if_const", "n_ir3", "n_out_const", "n_out_is_input", "n_out_weight", "n_overload_meta", "n_sparse_init"]
)
def test_spellings(name: str, interface: str, rewritings: Rewritings) -> None:
    result = rewritings.of_export(name, interface)
    assert result.report.complete
    assert result.report.plugins["PadfreeAttention"] == 2


@both
def test_nodes_of_one_name(interface: str) -> None:
    """onnxruntime refuses them next to subgraphs or functions: the reference is the file with other names."""
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


@both
@pytest.mark.parametrize("name", ["opsets_ts11", "c17_opsets_ts11", "c17_o_electra_cls_model"])
def test_old_opsets(name: str, interface: str, rewritings: Rewritings) -> None:
    """As exported, and as ONNX's own converter writes it: with Softmaxes over flattened scores."""
    result = rewritings.of_export(name, interface)
    assert result.report.complete
    assert result.report.plugins["PadfreeAttention"] == 2


@both
@pytest.mark.parametrize("name", ["esm2_tf4_p160_ts17", "bert_relkey_tf4_p160_ts17"])
def test_sizes_through_less_common_operators(name: str, interface: str, rewritings: Rewritings) -> None:
    result = rewritings.of_export(name, interface)
    assert result.report.packed_gemm_share == 1.0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mobilebert_dy18", r"'node_slice_3' \(Slice\) reads masked slots"),
        (
            "q_dynamic",
            r"\(DynamicQuantizeLinear\) takes its scale from the largest and smallest number of a whole batch",
        ),
    ],
)
@both
def test_true_reasons(name: str, reason: str, interface: str) -> None:
    """For example an embedding that reads the next token, or scales of whole batches."""
    with pytest.raises(RewriteError, match=reason):
        rewrite(exports.load(name), interface=interface)


@both
def test_constant_scales_are_taken_out(interface: str) -> None:
    """The weights are exactly the numbers that the file's integers stand for; everything is packed, attention too."""
    result = rewrite(exports.load("q_qdq"), interface=interface)
    assert result.report.complete
    assert result.report.packed_gemm_share == 1.0
    assert not {node.op_type for node in result.model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    assert exports.metadata_of(result)["unquantized"]["types"]


@pytest.mark.parametrize("axis", [None, -1])
def test_scales_for_columns(axis: int | None) -> None:
    builder, hidden = one_layer()
    scale = builder.constant(np.linspace(0.05, 0.2, HIDDEN) if axis else 0.1)
    zero = builder.constant(np.zeros(HIDDEN) if axis else 0, np.int8)
    attributes = {} if axis is None else {"axis": axis}
    steps = builder.op("QuantizeLinear", hidden, scale, zero, **attributes)
    model = with_output(builder.op("DequantizeLinear", steps, scale, zero, **attributes), builder, TOKENS)
    result = rewrite(model, strict=True, verify=False)
    assert not {node.op_type for node in result.model.graph.node} & {"QuantizeLinear", "DequantizeLinear"}
    assert_agree(model, result, tolerance=0.21)  # numbers lose their rounding: up to half a step each
    assert rewrite(model, precision="bf16", verify=False).report.complete


def test_nothing_like_attention() -> None:
    builder = EncoderBuilder()
    hidden = builder.op("Relu", builder.embedding())
    model = with_output(hidden, builder, TOKENS)
    with pytest.raises(RewriteError, match=r"neither a Softmax nor an Attention operator; it holds .*2 Gather"):
        rewrite(model)
    builder = EncoderBuilder()
    scores = builder.linear(builder.embedding(), HIDDEN, 3)
    model = with_output(builder.op("Softmax", scores, axis=-1), builder, ["batch", "sequence", 3])
    with pytest.raises(RewriteError, match=r"no Softmax is over .* \('n\d+' is over axis -1 of \[B, S, 3\]\)"):
        rewrite(model)
