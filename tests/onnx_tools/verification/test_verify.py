# SPDX-License-Identifier: Apache-2.0
"""Verification accepts an equivalent rewriting and names the place where a wrong one differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools import VerificationError
from padfree.onnx_tools.operators import DOMAIN, make_node, with_functions
from padfree.onnx_tools.verification.compared_output import ComparedOutput
from padfree.onnx_tools.verification.sample_batches import Batch, make_batches

from tests.support.messages import verify
from tests.support.samples import PLAIN_POOL

TABLE = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
SCHEDULE = {"has_extent": 0, "has_positions": 0, "has_tasks": 0, "num_heads": 1}
METADATA: dict[str, Any] = {
    "interface": "packed",
    "inputs": [
        {"name": "ids", "role": "tokens", "limit": 50, "dtype": "int32"},
        {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
    ],
    "outputs": [
        {"name": "y", "layout": "packed", "dtype": "float32"},
        {"name": "mean", "layout": "per_sequence", "dtype": "float32"},
    ],
    "max_positions": 40,
}
PADDED: dict[str, Any] = {
    **METADATA,
    "interface": "padded",
    "inputs": [
        {"name": "ids", "role": "tokens", "limit": 50, "dtype": "int64"},
        {"name": "mask", "role": "mask", "limit": None, "dtype": "int64"},
    ],
    "outputs": [
        {"name": "y", "layout": "padded", "dtype": "float32"},
        {"name": "mean", "layout": "per_sequence", "dtype": "float32"},
    ],
}


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[str]]], table: np.ndarray) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "mean")],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(np.array([2]), "two"),
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return with_functions(helper.make_model(graph, opset_imports=imports, ir_version=8))


def original(table: np.ndarray = TABLE) -> onnx.ModelProto:
    """Y = table[ids]; mean over the kept tokens."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["y"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "two"], ["kept3"]),
        helper.make_node("Mul", ["y", "kept3"], ["shown"]),
        helper.make_node("ReduceSum", ["shown", "one"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["kept", "one"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["mean"]),
    ]
    axes = (TensorProto.INT64, ["batch", "sequence"])
    return model_of(nodes, {"ids": axes, "mask": axes}, table)


def packed_model(table: np.ndarray = TABLE, mode: str = "mean") -> onnx.ModelProto:
    nodes = [
        make_node("PadfreeSchedule", ["seq_lens", "ids"], ["cu"], **SCHEDULE),
        helper.make_node("Gather", ["table", "ids"], ["y"]),
        make_node("PadfreePool", ["y", "cu"], ["mean"], **{**PLAIN_POOL, "mode": mode}),
    ]
    return model_of(nodes, {"ids": (TensorProto.INT32, ["T"]), "seq_lens": (TensorProto.INT32, ["B"])}, table)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_equivalent_model_passes(seed: int) -> None:
    errors = verify(original(), packed_model(), METADATA, seed=seed)
    assert set(errors) == {"y", "mean"}
    assert errors["y"] == 0
    assert errors["mean"] < 1e-6


def test_padded_interface_compares_left_padded_and_holed_masks() -> None:
    assert set(verify(original(), original(), PADDED)) == {"y", "mean"}
    names = [batch.name for batch in make_batches(PADDED, np.random.default_rng(0))]
    assert names == ["one token", "ragged", "longest", "left-padded", "holed"]


def test_batches_reach_one_token_and_the_longest() -> None:
    batches = make_batches(METADATA, np.random.default_rng(0))
    lengths = {int(length) for batch in batches for length in batch.mask.sum(1)}
    assert {1, 40} <= lengths
    assert max(lengths) == 40
    assert any(not batch.mask.all() for batch in batches)
    unlimited = make_batches({**METADATA, "max_positions": None}, np.random.default_rng(0))
    assert max(batch.mask.shape[1] for batch in unlimited) == 128
    shortest = make_batches({**METADATA, "max_positions": 2}, np.random.default_rng(0))
    assert max(batch.mask.shape[1] for batch in shortest) == 2


def test_a_wrong_row_is_named_with_both_values() -> None:
    changed = TABLE.copy()
    changed[:, 3] += 0.01
    with pytest.raises(VerificationError) as error:
        verify(original(), packed_model(changed), METADATA)
    message = str(error.value)
    for word in ("output 'y'", "sequence 0, position 0", "element [3]", "'one token'", "the original gives"):
        assert word in message
    assert "--no-verify" in message


def test_a_wrong_head_is_noticed_only_where_sequences_have_more_than_a_token() -> None:
    with pytest.raises(VerificationError, match=r"output 'mean', sequence \d+, element .*'ragged'"):
        verify(original(), packed_model(mode="first"), METADATA)


def test_nan_on_one_side_is_a_difference() -> None:
    changed = TABLE.copy()
    changed[:] = np.nan
    with pytest.raises(VerificationError, match="the rewritten model nan"):
        verify(original(), packed_model(changed), METADATA)


SPECIAL = TABLE.copy()
SPECIAL[:, 0] = np.finfo(np.float32).min
SPECIAL[:, 1] = -np.inf
SPECIAL[::2, 2] = -1e4
SPECIAL[:, 3] *= np.arange(len(SPECIAL)) % 10 == 0
SPECIAL[::5, 4] = np.nan


def changed_table(kind: str) -> np.ndarray:
    table = SPECIAL.copy()
    if kind == "weights":
        table[:, 7] *= -3
    elif kind == "sparse weights":
        table[:, 3] *= -3
    elif kind == "between stand-ins":
        table[1::2, 2] *= -3
    elif kind == "bias":
        table[:, 7] += 0.01
    elif kind == "nan":
        table[:, 7] = np.nan
    elif kind == "infinity":
        table[:, 1] = np.inf
    elif kind == "stand-in elsewhere":
        table[:, 2] = np.roll(table[:, 2], 1)
    elif kind == "no stand-in":
        table[:, 0] = 0
    return table


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        ("weights", 7),
        ("sparse weights", 3),
        ("between stand-ins", 2),
        ("bias", 7),
        ("nan", 7),
        ("infinity", 1),
        ("stand-in elsewhere", 2),
        ("no stand-in", 0),
    ],
)
def test_no_column_hides_another(kind: str, element: int) -> None:
    """Outputs with finfo.min, infinities, NaN and numbers that are mostly zero."""
    metadata = {**METADATA, "outputs": METADATA["outputs"][:1]}
    verify(original(SPECIAL), packed_model(SPECIAL), metadata)
    with pytest.raises(VerificationError, match=rf"output 'y', .*, element \[{element}\]"):
        verify(original(SPECIAL), packed_model(changed_table(kind)), metadata)


def test_other_shapes_are_a_difference() -> None:
    with pytest.raises(VerificationError, match=r"output 'y' has shape \[1, 4\] after rewriting, \[1, 8\]"):
        verify(original(), packed_model(TABLE[:, :4].copy()), METADATA)


def test_a_model_that_does_not_run_is_reported() -> None:
    broken = packed_model()
    broken.graph.node[1].op_type = "NoSuchOperator"
    with pytest.raises(VerificationError, match="does not load the rewritten model"):
        verify(original(), broken, METADATA)
    with pytest.raises(VerificationError, match="the original model fails in onnxruntime on the batch 'one token'"):
        verify(original(TABLE[:0].copy()), packed_model(), METADATA)


def test_a_difference_in_an_axis_of_no_known_size_is_named() -> None:
    """For example an axis of token blocks: the message names the element, and does not itself fail."""
    description = {"name": "y", "layout": "padded", "dims": ["B", "blocks"], "original_dims": ["B", "blocks"]}
    output = ComparedOutput(description, "padded")
    batch = Batch("ragged", np.ones((2, 3), np.bool_))
    wanted = np.arange(8, dtype=np.float32).reshape(2, 4)
    output.add(batch, wanted, wanted + (wanted == 5))
    with pytest.raises(VerificationError, match=r"output 'y', sequence 1, element 1.*the original gives 5"):
        output.largest_difference()
