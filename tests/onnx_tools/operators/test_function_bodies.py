# SPDX-License-Identifier: Apache-2.0
"""Function bodies in onnxruntime compared with numpy, in every variant; models with and without bodies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from padfree.onnx_tools import RewriteError, without_functions
from padfree.onnx_tools.operators import functions_for, make_node, with_functions

from tests.support import reference as ref
from tests.support.samples import PLAIN_EMBEDDING, PLAIN_NORM, PLAIN_POOL

from .bodies import (
    EPSILON,
    OPSETS,
    WIDTH,
    batches,
    check,
    cu_of,
    opsets,
    poison,
    rng,
    run,
)


@opsets
@pytest.mark.parametrize("shape", [(3, 7), (1, 1), (2, 0), (0, 4)])
def test_index(opset: int, shape: tuple[int, int]) -> None:
    mask = rng().integers(-1, 2, shape).astype(np.int32)
    if shape[0] > 1:
        mask[1] = 0
    for actual, expected in zip(run("PadfreeIndex", {"mask": mask}, opset), ref.index(mask), strict=True):
        assert actual.dtype == np.int32
        np.testing.assert_array_equal(actual, expected)


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("rest", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize(("size", "indices"), [((3, 4), [0, 5, -1, 11, 12, 5, -7]), ((3, 4), []), ((3, 0), [0, -1])])
def test_pack(opset: int, dtype: type, rest: tuple[int, ...], size: tuple[int, int], indices: Sequence[int]) -> None:
    x = (rng().standard_normal((*size, *rest)) * 100).astype(dtype)
    token_index = np.array(indices, np.int32)
    (packed,) = run("PadfreePack", {"x": x, "token_index": token_index}, opset)
    expected = ref.pack(x, token_index)
    assert packed.dtype == dtype
    assert packed.shape == expected.shape
    np.testing.assert_array_equal(packed, expected)


@opsets
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("rest", [(), (5,), (2, 3)])
@pytest.mark.parametrize(
    ("size", "indices"),
    [((3, 4), [1, 5, -1, 11, 12, -7]), ((3, 4), []), ((3, 0), [0, -1]), ((0, 4), [0, -1]), ((0, 4), [])],
)
def test_unpack(opset: int, dtype: type, rest: tuple[int, ...], size: tuple[int, int], indices: Sequence[int]) -> None:
    packed = (rng().standard_normal((len(indices), *rest)) * 100).astype(dtype)
    feeds = {
        "packed": packed,
        "token_index": np.array(indices, np.int32),
        "seq_lens": np.zeros(size[0], np.int32),
        "extent": np.zeros((2, size[1]), np.int32),
    }
    (x,) = run("PadfreeUnpack", feeds, opset)
    expected = ref.unpack(packed, feeds["token_index"], feeds["seq_lens"], feeds["extent"])
    assert x.dtype == dtype
    assert x.shape == expected.shape
    np.testing.assert_array_equal(x, expected)


@opsets
@pytest.mark.parametrize("extent", [None, 0, 3, 9, 12])
@pytest.mark.parametrize(
    ("lens", "tokens"),
    [
        ([5, 1, 9, 3], 18),
        ([0, 5, -4, 0, 9], 20),
        ([5, 9, 9], 12),  # more than the number of tokens
        ([2**31 - 1, 2**31 - 1, -(2**31)], 6),
        ([], 3),
        ([0, 0], 0),
        ([], 0),
    ],
)
def test_schedule(opset: int, extent: int | None, lens: list[int], tokens: int) -> None:
    feeds = {"seq_lens": np.array(lens, np.int32), "tokens": np.zeros(tokens, np.int32)}
    if extent is not None:
        feeds["extent"] = np.zeros(extent, np.int32)
    expected = [item for item in ref.schedule(feeds["seq_lens"], tokens, extent) if item is not None]
    for more in (0, 1):
        attributes = {"has_extent": int(extent is not None), "has_positions": more, "has_tasks": more, "num_heads": 12}
        outputs = run("PadfreeSchedule", feeds, opset, **attributes)
        lists = [ref.positions(expected[0], tokens), np.zeros((1, 4), np.int32)] if more else []
        for actual, wanted in zip(outputs, [*expected, *lists], strict=True):
            assert actual.dtype == np.int32
            np.testing.assert_array_equal(actual, wanted)


@batches
@pytest.mark.parametrize("types", [0, 1])
@pytest.mark.parametrize("positions", ["none", "counted", "given"])
@pytest.mark.parametrize("beta", [0, 1])
def test_embedding(batch: str, types: int, positions: str, beta: int) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        r = rng()
        offset = 2 if positions == "counted" else 0
        tensors = {
            "ids": r.integers(-2, 13, tokens).astype(np.int32),  # some below 0, some V or larger
            "cu_seqlens": cu,
            "word_table": r.standard_normal((11, WIDTH)).astype(np.float32),
            "gamma": r.standard_normal(WIDTH).astype(np.float32),
        }
        if types:
            tensors["token_types"] = r.integers(0, 4, tokens).astype(np.int32)
            tensors["type_table"] = r.standard_normal((3, WIDTH)).astype(np.float32)
        if positions != "none":
            tensors["position_table"] = r.standard_normal((20, WIDTH)).astype(np.float32)
        if positions == "given":
            tensors["positions"] = r.integers(-1, 22, tokens).astype(np.int32)
        if beta:
            tensors["beta"] = r.standard_normal(WIDTH).astype(np.float32)
        attributes = {
            **PLAIN_EMBEDDING,
            "epsilon": EPSILON,
            "position_offset": offset,
            "has_token_types": types,
            "has_positions": int(positions == "given"),
            "has_position_table": int(positions != "none"),
            "has_beta": beta,
        }
        (y,) = run("PadfreeEmbedding", tensors, opset, **attributes)
        check(y, ref.embedding(**tensors, epsilon=EPSILON, position_offset=offset))
        del tensors["cu_seqlens"]
        tensors["seq_lens"] = np.diff(cu).astype(np.int32)
        result = run("PadfreeEmbedding", tensors, opset, **{**attributes, "schedules": 1, "has_tasks": 1})
        for actual, wanted in zip(result, (y, cu, np.zeros((1, 4), np.int32)), strict=True):
            np.testing.assert_array_equal(actual, wanted)


@opsets
@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize("flags", range(16))
def test_layer_norm(opset: int, rms: int, flags: int) -> None:
    bias, residual, beta, has_sum = (flags >> i & 1 for i in range(4))
    r = rng()
    for lead in ((6,), (2, 3), (0,)):
        tensors = {
            "x": (r.standard_normal((*lead, WIDTH)) + 3).astype(np.float32),
            "gamma": r.standard_normal(WIDTH).astype(np.float32),
        }
        if bias:
            tensors["bias"] = r.standard_normal(WIDTH).astype(np.float32)
        if residual:
            tensors["residual"] = r.standard_normal((*lead, WIDTH)).astype(np.float32)
        if beta:
            tensors["beta"] = r.standard_normal(WIDTH).astype(np.float32)
        outputs = run(
            "PadfreeLayerNorm",
            tensors,
            opset,
            **{
                **PLAIN_NORM,
                "epsilon": EPSILON,
                "rms": rms,
                "has_bias": bias,
                "has_residual": residual,
                "has_beta": beta,
                "has_sum": has_sum,
            },
        )
        expected = ref.layer_norm(**tensors, epsilon=EPSILON, rms=bool(rms))
        for actual, wanted in zip(outputs, expected[: 1 + has_sum], strict=True):
            check(actual, wanted)


@batches
@pytest.mark.parametrize("has_sum", [0, 1])
def test_layer_norm_with_rows_of_first_tokens(batch: str, has_sum: int) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        tensors = {
            "x": (rng().standard_normal((tokens, WIDTH)) + 3).astype(np.float32),
            "gamma": rng().standard_normal(WIDTH).astype(np.float32),
        }
        attributes = {**PLAIN_NORM, "epsilon": EPSILON, "has_sum": has_sum, "has_first": 1, "results": "fp32"}
        *rows, first = run("PadfreeLayerNorm", {**tensors, "cu_seqlens": cu}, opset, **attributes)
        expected = ref.layer_norm(**tensors, epsilon=EPSILON)
        for actual, wanted in zip(rows, expected[: 1 + has_sum], strict=True):
            check(actual, wanted)
        check(first, ref.pool(expected[0], cu, "first", normalize=False))


@batches
@pytest.mark.parametrize("mode", ["first", "last", "mean", "max", "each"])
@pytest.mark.parametrize("normalize", [0, 1])
def test_pool(batch: str, mode: str, normalize: int) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        x = poison((rng().standard_normal((tokens, WIDTH)) - 2).astype(np.float32), cu)
        if mode == "each":
            x = (rng().standard_normal((len(cu) - 1, WIDTH)) - 2).astype(np.float32)
        (y,) = run(
            "PadfreePool", {"x": x, "cu_seqlens": cu}, opset, **{**PLAIN_POOL, "mode": mode, "normalize": normalize}
        )
        check(y, ref.pool(x, cu, mode, bool(normalize)))


@batches
@pytest.mark.parametrize("mode", ["first", "last", "mean"])
@pytest.mark.parametrize("has_beta", [0, 1])
@pytest.mark.parametrize("rms", [0, 1])
def test_pool_of_normed_rows(batch: str, mode: str, has_beta: int, rms: int) -> None:
    cu, tokens = cu_of(batch)
    x = poison((rng().standard_normal((tokens, WIDTH)) + 3).astype(np.float32), cu)
    tensors = {"gamma": rng().standard_normal(WIDTH).astype(np.float32)}
    if has_beta:
        tensors["beta"] = rng().standard_normal(WIDTH).astype(np.float32)
    attributes = {
        **PLAIN_POOL, "epsilon": EPSILON, "mode": mode, "normalize": 1, "has_norm": 1, "has_beta": has_beta, "rms": rms,
    }  # fmt: skip
    for results in ("act", "fp32"):
        (y,) = run("PadfreePool", {"x": x, "cu_seqlens": cu, **tensors}, 17, **{**attributes, "results": results})
        rows, _ = ref.layer_norm(x, **tensors, epsilon=EPSILON, rms=bool(rms))
        check(y, ref.pool(rows, cu, mode, normalize=True))


@batches
def test_layer_norm_with_a_pooler(batch: str) -> None:
    for opset in OPSETS if batch == "filler and empty" else (17,):
        cu, tokens = cu_of(batch)
        norm = {
            "x": (rng().standard_normal((tokens, WIDTH)) + 3).astype(np.float32),
            "gamma": rng().standard_normal(WIDTH).astype(np.float32),
        }
        weight, bias = rng().standard_normal((5, WIDTH)).astype(np.float32), np.arange(5, dtype=np.float32)
        attributes = {**PLAIN_NORM, "epsilon": EPSILON, "has_first": 1, "has_pooler": 1, "results": "fp32"}
        tensors = {**norm, "cu_seqlens": cu, "pooler_weight": weight, "pooler_bias": bias}
        rows, pooled = run("PadfreeLayerNorm", tensors, opset, **attributes)
        expected, _ = ref.layer_norm(**norm, epsilon=EPSILON)
        check(rows, expected)
        check(pooled, np.tanh(ref.pool(expected, cu, "first", normalize=False) @ weight.T + bias))


def two_pools() -> onnx.ModelProto:
    nodes = [
        make_node("PadfreePool", ["x", "cu"], ["mean"], **PLAIN_POOL),
        make_node("PadfreePool", ["x", "cu"], ["max"], **{**PLAIN_POOL, "mode": "max"}),
        make_node("PadfreePool", ["x", "cu"], ["mean2"], **PLAIN_POOL),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 4]),
            helper.make_tensor_value_info("cu", TensorProto.INT32, ["N"]),
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", 4]) for n in ("mean", "max", "mean2")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_several_variants_of_one_operator_in_one_model() -> None:
    model = with_functions(two_pools())
    onnx.checker.check_model(model, full_check=True)
    assert len(model.functions) == 2, "one body a variant, shared by its nodes"
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    mean, maximum, mean2 = session.run(None, {"x": x, "cu": np.array([0, 3], np.int32)})
    np.testing.assert_array_equal(mean, x.mean(0)[None])
    np.testing.assert_array_equal(maximum, x.max(0)[None])
    np.testing.assert_array_equal(mean2, mean)


def test_without_functions_leaves_plain_nodes_with_all_attributes() -> None:
    source = with_functions(two_pools())
    before = source.SerializeToString()
    plain = without_functions(source)
    assert source.SerializeToString() == before, "the argument is left as it is"
    assert not plain.functions
    assert [(entry.domain, entry.version) for entry in plain.opset_import] == [("", 17), ("padfree", 1)]
    for node in plain.graph.node:
        assert (node.op_type, node.domain, node.overload) == ("PadfreePool", "padfree", "")
        assert {a.name for a in node.attribute} == set(PLAIN_POOL)
    assert with_functions(plain).SerializeToString() == before


def test_other_functions_and_domains_are_left_alone() -> None:
    model = two_pools()
    other = helper.make_function(
        "other", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    model.functions.append(other)
    model.opset_import.append(helper.make_opsetid("other", 1))
    plain = without_functions(with_functions(model))
    assert [function.name for function in plain.functions] == ["Twice"]
    assert "other" in {entry.domain for entry in plain.opset_import}


@pytest.mark.parametrize(
    ("opset", "precision", "words"),
    [(13, "fp32", "opset is 13, allowed is 14 to 23"), (24, "fp32", "opset is 24"), (17, "int8", "'int8', allowed")],
)
def test_what_cannot_be_written_is_refused(opset: int, precision: str, words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        functions_for(opset, two_pools().graph.node, precision)
