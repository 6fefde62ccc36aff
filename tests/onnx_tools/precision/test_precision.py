# SPDX-License-Identifier: Apache-2.0
"""Conversion to fp16 and bf16: what computes in which type, that every cast is written, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError, VerificationError, without_functions
from padfree.onnx_tools.operators import DOMAIN, make_node, with_functions
from padfree.onnx_tools.precision.element_types import check_element_types
from padfree.onnx_tools.precision.rounded_weights import round_to, to_float32

from tests.support.messages import check_weights, convert
from tests.support.samples import PLAIN_NORM

E = 8
HALF = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
NORM = {**PLAIN_NORM, "has_bias": 1, "has_beta": 1}


def weights(**changes: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    values = {
        "table": rng.standard_normal((20, E)),
        "w": rng.standard_normal((E, E)),
        "bias": rng.standard_normal(E),
        "gamma": rng.standard_normal(E),
        "beta": rng.standard_normal(E),
        "axes": np.array([1]),
        "low": np.array(np.finfo(np.float32).min),
        "zero": np.array(0.0),
        "tiny": np.array(1e-12),
        "two": np.array(2.0),
    }
    values |= changes
    return {name: v if v.dtype == np.int64 else v.astype(np.float32) for name, v in values.items()}


def model_of(nodes: list[onnx.NodeProto], outputs: tuple[str, ...], values: dict[str, np.ndarray]) -> onnx.ModelProto:
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT32, ["T"]),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, ["T", 1]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in values.items() if name in used],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def small_model(**changes: Any) -> onnx.ModelProto:
    """Gather, product, padfree norm, then a softmax island with a mask of finfo.min, and a product again."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        make_node("PadfreeLayerNorm", ["h", "bias", "gamma", "beta"], ["y"], **NORM),
        helper.make_node("Mul", ["y", "two"], ["scaled"]),
        helper.make_node("Where", ["keep", "zero", "low"], ["hidden"]),
        helper.make_node("Add", ["scaled", "hidden"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("Add", ["p", "bias"], ["q"]),
        helper.make_node("MatMul", ["q", "w"], ["z"]),
        helper.make_node("Tanh", ["z"], ["out"]),
    ]
    return model_of(nodes, ("y", "out"), weights(**changes))


def types_of(model: onnx.ModelProto, precision: str) -> dict[str, int]:
    return check_element_types(model, precision)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_which_tensor_has_which_type(precision: str) -> None:
    model = small_model()
    before = model.SerializeToString()
    result = convert(model, precision)
    assert model.SerializeToString() == before
    types = types_of(result, precision)
    half = HALF[precision]
    for name in ("x", "h", f"y.{precision}", "scaled", "z", f"out.{precision}", "table", "w", "gamma", "beta"):
        assert types[name] == half, name
    # bfloat16 holds finfo.min only as infinity, float16 not at all: the mask stays float32, and with it the softmax.
    for name in ("hidden", "scores", "p", "q", "y", "out", "low", "zero"):
        assert types[name] == TensorProto.FLOAT, name
    ops = [node.op_type for node in result.graph.node]
    assert ops == ["Gather", "MatMul", "PadfreeLayerNorm", "Mul", "Where", "Cast", "Add", "Softmax", "Add", "Cast",
                   "MatMul", "Tanh", "Cast", "Cast"]  # fmt: skip


def test_weights_are_stored_once_unless_both_types_are_read() -> None:
    names = [tensor.name for tensor in convert(small_model(), "fp16").graph.initializer]
    assert sorted(names) == sorted(["table", "w", "bias", "bias.fp16", "gamma", "beta", "low", "zero", "two"])


def test_half_precision_result_is_close_in_onnxruntime() -> None:
    """fp16 rounds to 2^-11; after a few operations on values up to 10, errors stay within 0.05."""
    model = small_model()
    feeds = {"ids": np.arange(20, dtype=np.int32), "keep": np.arange(20)[:, None] % 3 > 0}
    results = []
    for item, precision in ((model, "fp32"), (convert(model, "fp16"), "fp16")):
        content = with_functions(item, precision).SerializeToString()
        session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
        results.append(session.run(None, feeds))
    for a, b in zip(*results, strict=True):
        assert b.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=0.05)
        assert not np.array_equal(a, b)


def island(nodes: list[onnx.NodeProto], **changes: Any) -> onnx.ModelProto:
    head = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
    ]
    return model_of([*head, *nodes], ("out",), weights(**changes))


def test_a_decomposed_norm_stays_float32_with_its_epsilon() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["h"], ["mean"], axes=[1]),
        helper.make_node("Sub", ["h", "mean"], ["d"]),
        helper.make_node("Pow", ["d", "two"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["var"], axes=[1]),
        helper.make_node("Add", ["var", "tiny"], ["v"]),
        helper.make_node("Sqrt", ["v"], ["r"]),
        helper.make_node("Div", ["d", "r"], ["n"]),
        helper.make_node("Mul", ["n", "gamma"], ["g"]),
        helper.make_node("MatMul", ["g", "w"], ["out"]),
    ]
    result = convert(island(nodes), "fp16")
    types = types_of(result, "fp16")
    for name in ("mean", "d", "s", "var", "v", "r", "n", "g"):
        assert types[name] == TensorProto.FLOAT, name
    assert types["h"] == TensorProto.FLOAT16
    casts = [node.input[0] for node in result.graph.node if node.op_type == "Cast"]
    assert casts == ["h", "g", "out.fp16"], "h is cast once for both of its readers"


def test_constant_nodes_and_casts_to_float() -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], value_float=0.5),
        helper.make_node("Mul", ["h", "c"], ["m"]),
        helper.make_node("Cast", ["keep"], ["k"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["m", "k"], ["masked"]),
        helper.make_node("Cast", ["ids"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["number", "axes"], ["column"]),
        helper.make_node("Mul", ["masked", "column"], ["out"]),
    ]
    types = types_of(convert(island(nodes), "fp16"), "fp16")
    for name in ("c", "m", "k", "masked"):
        assert types[name] == TensorProto.FLOAT16, name
    for name in ("number", "column", "out"):  # an integer may be above 2048, where float16 skips numbers
        assert types[name] == TensorProto.FLOAT, name


def test_fp32_changes_nothing() -> None:
    model = small_model()
    assert convert(model, "fp32").SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("factor", [7e4, 1e-6])
def test_gemms_whose_weights_overflow_or_vanish_stay_float32(factor: float) -> None:
    large = np.full((E, E), factor)
    types = types_of(convert(small_model(w=large), "fp16"), "fp16")
    assert types["w"] == types["h"] == TensorProto.FLOAT


def test_overflowing_weights_of_padfree_operators_are_refused_by_name() -> None:
    large = np.full((E, E), 7e4)
    assert types_of(convert(small_model(w=large), "bf16"), "bf16")["w"] == TensorProto.BFLOAT16
    with pytest.raises(RewriteError, match="weight 'gamma' of PadfreeLayerNorm 'y' holds 1e\\+06"):
        convert(small_model(gamma=np.full(E, 1e6)), "fp16")


def test_other_precisions_and_subgraphs_are_refused() -> None:
    with pytest.raises(RewriteError, match="'int8', allowed are fp32, fp16, bf16"):
        convert(small_model(), "int8")
    branch = helper.make_graph(
        [helper.make_node("Identity", ["h"], ["b"])], "b", [], [helper.make_tensor_value_info("b", 1, None)]
    )
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    nodes = [condition, helper.make_node("If", ["c"], ["out"], name="choice", then_branch=branch, else_branch=branch)]
    with pytest.raises(RewriteError, match="If 'choice' holds a subgraph"):
        convert(island(nodes), "fp16")


def test_operators_of_unknown_types_are_refused_but_for_fp32() -> None:
    model = island(
        [helper.make_node("Strange", ["h"], ["s"], domain="other"), helper.make_node("Tanh", ["s"], ["out"])]
    )
    model.opset_import.append(helper.make_opsetid("other", 1))
    with pytest.raises(RewriteError, match="type of 's', which Strange '' makes, cannot be worked out"):
        convert(model, "fp16")
    assert convert(model, "fp32").SerializeToString() == model.SerializeToString()


def test_rounding_to_bfloat16_is_to_nearest_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-9, -np.inf, np.nan, 3.4e38, 1e-40, -0.0], np.float32)
    expected = [1.0, 1.0, 1 + 2**-6, 1.0, -np.inf, np.nan, np.inf, 1e-40, -0.0]
    actual = to_float32(round_to(values, "bf16"))
    np.testing.assert_allclose(actual, np.array(expected, np.float32), rtol=2**-8, atol=2.0**-134)
    np.testing.assert_array_equal(actual[:4], np.array(expected[:4], np.float32))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_changed_weight_is_noticed(precision: str) -> None:
    model = small_model()
    result = convert(model, precision)
    check_weights(model, result, precision)
    (w,) = [tensor for tensor in result.graph.initializer if tensor.name == "w"]
    values = to_float32(w)
    values[2, 3] *= 1.02
    w.raw_data = round_to(values, precision).raw_data
    with pytest.raises(VerificationError, match=r"weight 'w' is not the original rounded .*\(1 of 64"):
        check_weights(model, result, precision)


def test_a_missing_cast_is_noticed_at_every_node() -> None:
    result = convert(small_model(), "fp16")
    casts = [node for node in result.graph.node if node.op_type == "Cast"]
    assert len(casts) == 4
    for cast, (reader, position) in itertools.product(
        casts[:2], [(n, i) for n in result.graph.node for i in range(len(n.input))]
    ):
        if reader.input[position] != cast.output[0]:
            continue
        reader.input[position] = cast.input[0]
        with pytest.raises(VerificationError, match=rf"{reader.op_type} '.*allowed is tensor\(float"):
            check_element_types(result, "fp16")
        reader.input[position] = cast.output[0]
    check_element_types(result, "fp16")


def test_a_padfree_node_of_another_type_is_noticed() -> None:
    with pytest.raises(
        VerificationError, match=r"PadfreeLayerNorm 'y': 'h' \(x\) is tensor\(float\), allowed is tensor\(fl"
    ):
        check_element_types(small_model(), "fp16")


def test_operators_without_the_type_stay_float32() -> None:
    """Convolutions have bfloat16 from opset 22 on."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[B,4,S] x) => (float[B,4,R] y) <float[4,4,1] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}>
        { h = Mul(x, x)  c = Conv<strides = [2]>(h, w)  y = Mul(c, c) }"""
    for precision, type_of_sums in (("bf16", TensorProto.FLOAT), ("fp16", TensorProto.FLOAT16)):
        model = convert(onnx.parser.parse_model(text), precision)
        (convolution,) = (node for node in model.graph.node if node.op_type == "Conv")
        types = check_element_types(without_functions(model), precision)
        assert {types[name] for name in (*convolution.input, *convolution.output)} == {type_of_sums}


def test_products_of_positions_stay_float32() -> None:
    """Angles of rotary embeddings as transformers writes them: fp16 cannot represent odd positions above 2048."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (int64[B,S] ids, float[B,S,4] x) => (float[B,S,4] y) {
          three = Constant<value = int64[1] {1}> ()
          rows = Cast<to = 1> (ids)
          column = Unsqueeze (rows, three)
          frequencies = Constant<value = float[1,4,1] {1.0, 0.1, 0.01, 0.001}> ()
          angles = MatMul (frequencies, column)
          turned = Transpose<perm = [0, 2, 1]> (angles)
          cosines = Cos (turned)
          y = Mul (x, cosines)
        }"""
    model = convert(onnx.parser.parse_model(text), "fp16")
    types = check_element_types(model, "fp16")
    assert {types[name] for name in ("column", "angles", "turned", "cosines")} == {TensorProto.FLOAT}
