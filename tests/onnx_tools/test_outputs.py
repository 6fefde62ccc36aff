# SPDX-License-Identifier: Apache-2.0
"""Outputs of all shapes: a sequence gets its own part, which is what the original gives for it alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from padfree.builder.array_files import write_results
from padfree.onnx_tools import RewriteError, VerificationError, rewrite, save_model
from padfree.onnx_tools.operators import with_functions
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime import Session
from padfree.runtime.triton.items import Item, stack

from tests.support.exports import assert_right, inputs_of, load, metadata_of
from tests.support.messages import verify

LENGTHS, HIDDEN = (5, 1, 9), 32
TOLERANCE = 1e-5
Nodes = list[NodeProto]
op = helper.make_node

# What is computed from last_hidden_state, and which axis is the batch (None: none on its own).
SHAPES: dict[str, tuple[Nodes, int | None]] = {
    "[B*S,E]": ([op("Reshape", ["last_hidden_state", "flat"], ["out"])], None),
    "[S,B,E]": ([op("Transpose", ["last_hidden_state"], ["out"], perm=[1, 0, 2])], 1),
    "[B,E,S]": ([op("Transpose", ["last_hidden_state"], ["out"], perm=[0, 2, 1])], 0),
    "[H,B,S,D]": (
        [
            op("Reshape", ["last_hidden_state", "heads"], ["apart"]),
            op("Transpose", ["apart"], ["out"], perm=[2, 0, 1, 3]),
        ],
        1,
    ),
    "[B,S,S]": (
        [
            op("Transpose", ["last_hidden_state"], ["transposed"], perm=[0, 2, 1]),
            op("MatMul", ["last_hidden_state", "transposed"], ["out"]),
        ],
        0,
    ),
    "[S]": (
        [
            op("Shape", ["input_ids"], ["sizes"]),
            op("Gather", ["sizes", "one"], ["length"]),
            op("Range", ["zero", "length", "one"], ["slots"]),
            op("Cast", ["slots"], ["out"], to=TensorProto.FLOAT),
        ],
        None,
    ),
    "weight": ([op("Identity", ["embeddings.LayerNorm.bias"], ["out"])], None),
}
REFUSED = {
    "[B,B]": ("[B, B]", [
        op("Transpose", ["pooler_output"], ["transposed"]), op("MatMul", ["pooler_output", "transposed"], ["out"])
    ]),
    "batch mean": ("one result of the whole batch", [op("ReduceMean", ["pooler_output"], ["out"], keepdims=0)]),
    "valid tokens": ("has the shape", [
        op("NonZero", ["attention_mask"], ["places"]), op("Transpose", ["places"], ["rows"]),
        op("GatherND", ["last_hidden_state", "rows"], ["out"]),
    ]),
}  # fmt: skip


def model_with(nodes: Nodes) -> ModelProto:
    model = bert_model(1, HIDDEN, 4, 64, vocab_size=60, max_positions=48)
    graph = model.graph
    graph.node.extend(nodes)
    for name, value in (("flat", [-1, HIDDEN]), ("heads", [0, 0, 4, 8]), ("one", 1), ("zero", 0)):
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    del graph.output[:]
    for name in ("out", "last_hidden_state"):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return model


def requests() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.integers(0, 60, length) for length in LENGTHS]


def alone(model: ModelProto, ids: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    row = ids[None].astype(np.int64)
    feeds = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
    return np.asarray(session.run(["out"], feeds)[0])


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_sequence_gets_its_own_part(name: str, interface: str, tmp_path: Path) -> None:
    nodes, axis = SHAPES[name]
    model = model_with(nodes)
    save_model(rewrite(model, interface=interface).model, tmp_path / "model.onnx")
    if (name, interface) == ("[B*S,E]", "padded"):
        pytest.skip("a padded file keeps the original's tensor as it is")
    with Session(tmp_path / "model.onnx") as session:
        results = session.run(requests())
        metadata = session.metadata
    for ids, actual in zip(requests(), results["out"], strict=True):
        wanted = alone(model, ids)
        wanted = wanted if axis is None else wanted.take(0, axis)
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)
    write_results(tmp_path / "results.npz", results, metadata)
    with np.load(tmp_path / "results.npz") as file:
        if name == "weight":
            np.testing.assert_array_equal(file["out"], results["out"][0])
        elif "out" in file.files:
            np.testing.assert_array_equal(file["out"], np.concatenate(results["out"]))
        else:
            np.testing.assert_array_equal(file["out.2"], results["out"][2])


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_sequence_owns_is_refused_without_padding(name: str) -> None:
    reason, nodes = REFUSED[name]
    with pytest.raises(RewriteError, match="output 'out' ") as error:
        rewrite(model_with(nodes), interface="packed")
    assert reason in str(error.value)
    assert "choose the padded interface" in str(error.value)
    rewrite(model_with(nodes), interface="padded")


def test_triton_answers_have_zeros_after_every_end(tmp_path: Path) -> None:
    model = model_with(SHAPES["[B,S,S]"][0])
    save_model(rewrite(model).model, tmp_path / "model.onnx")
    with Session(tmp_path / "model.onnx") as session:
        rows = session.run(requests())["out"]
        (output, _) = session.metadata.outputs
    answer = stack(rows, Item({}, list(LENGTHS), 12), output)
    assert answer.shape == (3, 12, 12)
    for row, padded in zip(rows, answer, strict=True):
        np.testing.assert_array_equal(padded[: len(row), : len(row)], row)
        assert not padded[len(row) :].any()
        assert not padded[:, len(row) :].any()


def test_wrong_numbers_on_any_axis_are_found() -> None:
    """The scores of one query for every key, and of every query for one key, are wrong."""
    model = model_with(SHAPES["[B,S,S]"][0])
    result = rewrite(model, verify=False)
    metadata = dict(metadata_of(result))
    for axis in (1, 2):
        wrong = ModelProto()
        wrong.CopyFrom(result.model)
        (node,) = [item for item in wrong.graph.node if "out" in item.output]
        node.output[list(node.output).index("out")] = "right"
        wrong.graph.node.extend(
            [
                op("Shape", ["right"], ["sizes_"]),
                op("ConstantOfShape", ["sizes_"], ["zeros_"]),
                op("Slice", ["zeros_", "from_", "to_", "axis_"], ["strip_"]),
                op("Slice", ["right", "to_", "end_", "axis_"], ["rest_"]),
                op("Concat", ["strip_", "rest_"], ["out"], axis=axis),
            ]
        )
        for name, value in (("from_", [0]), ("to_", [1]), ("end_", [1 << 30]), ("axis_", [axis])):
            wrong.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        with pytest.raises(VerificationError, match=r"output 'out', sequence 0, position 0, position 0"):
            verify(model, with_functions(wrong), metadata)


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", ["attentions_ts17", "globalpointer_ts17", "n_out_weight", "st_weightedmean_dn_ts"])
def test_exports(name: str, interface: str) -> None:
    """Attention weights and scores of spans [B,H,S,S], a weight as an output, a mean with weights by position."""
    assert_right(load(name), inputs_of(name), interface)
