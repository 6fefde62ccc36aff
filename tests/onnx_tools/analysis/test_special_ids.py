# SPDX-License-Identifier: Apache-2.0
"""Models that look for ids, such as the end of a text: sample ids contain what they look for, padding does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError, VerificationError, rewrite, save_model
from padfree.onnx_tools.analysis.special_ids import IdRule, SpecialIds, rules_for, special_ids
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.importing import import_model
from padfree.onnx_tools.operators import with_functions
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime import Session

from tests.support.exports import assert_right, inputs_of, load, metadata_of
from tests.support.messages import verify_ids
from tests.support.rewritings import Rewritings

HIDDEN, END = 32, 2
TOLERANCE = 1e-5
interfaces = pytest.mark.parametrize("interface", ["packed", "padded"])


def pooled_at(end: int, *, last: bool = False, missing_mask: bool = False) -> ModelProto:
    """A BERT that outputs the first (or last) token with the id `end`, and deliberately a mean over all slots."""
    model = bert_model(1, HIDDEN, 4, 64, vocab_size=60, max_positions=48)
    op = helper.make_node
    nodes = [
        op("Equal", ["input_ids", "end"], ["is_end"]),
        op("Cast", ["is_end"], ["ends"], to=TensorProto.INT32),
        op("ArgMax", ["ends"], ["slot"], axis=1, keepdims=0, select_last_index=int(last)),
        op("Shape", ["input_ids"], ["sizes"]),
        op("Gather", ["sizes", "zero"], ["batch"]),
        op("Range", ["zero", "batch", "one"], ["rows"]),
        op("Unsqueeze", ["rows", "behind"], ["rows2"]),
        op("Unsqueeze", ["slot", "behind"], ["slot2"]),
        op("Concat", ["rows2", "slot2"], ["places"], axis=1),
        op("GatherND", ["last_hidden_state", "places"], ["token"]),
    ]
    if missing_mask:
        nodes += [
            op("Gather", ["embeddings.word_embeddings.weight", "input_ids"], ["looked_up"]),
            op("ReduceMean", ["looked_up"], ["mean"], axes=[1], keepdims=0),
            op("Add", ["token", "mean"], ["out"]),
        ]
    else:
        nodes.append(op("Identity", ["token"], ["out"]))
    model.graph.node.extend(nodes)
    for name, value in (("end", end), ("zero", 0), ("one", 1), ("behind", [1])):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    return model


def texts(end: int) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    rows = [rng.integers(3, 60, length) for length in (5, 1, 9)]
    for row in rows:
        row[-1] = end
    return rows


def alone(model: ModelProto, ids: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ones = {value.name: np.ones((1, ids.size), np.int64) for value in model.graph.input}
    feeds = {**ones, "input_ids": ids[None].astype(np.int64)}
    if "token_type_ids" in feeds:
        feeds["token_type_ids"] = np.zeros_like(feeds["input_ids"])
    return np.asarray(session.run(None, feeds)[0])[0]


def check(model: ModelProto, end: int, folder: Path, interface: str) -> None:
    """Through Session, every text gets the original's result for it alone."""
    save_model(rewrite(model, interface=interface).model, folder / "model.onnx")
    with Session(folder / "model.onnx") as session:
        (actual,) = session.run(texts(end)).values()
    for ids, row in zip(texts(end), actual, strict=True):
        np.testing.assert_allclose(row, alone(model, ids), atol=TOLERANCE)


@interfaces
@pytest.mark.parametrize("last", [False, True])
def test_pooling_at_an_id(interface: str, last: bool, tmp_path: Path) -> None:
    check(pooled_at(END, last=last), END, tmp_path, interface)


@interfaces
def test_padding_is_another_id_than_the_one_that_is_looked_for(interface: str, tmp_path: Path) -> None:
    """Looks for the last 0 of a text: padding is not 0, neither in padded files nor in slots that packed ones have."""
    check(pooled_at(0, last=True), 0, tmp_path, interface)


def pooled_before(padding: int) -> ModelProto:
    """A BERT that outputs the last non-padding token, which it finds by ids as GPT2ForSequenceClassification does."""
    model = pooled_at(END)
    op = helper.make_node
    slots = [
        op("Gather", ["sizes", "one"], ["length"]),
        op("Range", ["zero", "length", "one"], ["places_of_slots"]),
        op("Equal", ["input_ids", "padding"], ["is_padding"]),
        op("Not", ["is_padding"], ["is_token"]),
        op("Cast", ["is_token"], ["tokens"], to=TensorProto.INT64),
        op("Mul", ["tokens", "places_of_slots"], ["ends"]),
    ]
    nodes = [node for node in model.graph.node if not {"is_end", "ends"} & set(node.output)]
    index = next(i for i, node in enumerate(nodes) if node.op_type == "ArgMax")
    sizes = next(node for node in nodes if "sizes" in node.output)
    nodes.remove(sizes)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:index], sizes, *slots, *nodes[index:]])
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(padding), "padding"))
    return model


@interfaces
@pytest.mark.parametrize("padding", [0, 1, 59])
def test_pooling_before_padding(interface: str, padding: int, tmp_path: Path) -> None:
    check(pooled_before(padding), END, tmp_path, interface)


@interfaces
def test_padding_that_is_read_is_refused(interface: str) -> None:
    with pytest.raises(RewriteError, match=r"padding|padded"):
        rewrite(pooled_at(END, missing_mask=True), interface=interface)


@interfaces
def test_the_largest_id_is_looked_for(interface: str) -> None:
    assert_right(load("clip_text_ts17"), inputs_of("clip_text_ts17"), interface)


@pytest.mark.parametrize("name", ["bart_cls_dy18", pytest.param("o_bart_cls_model", marks=pytest.mark.slow)])
def test_bart_takes_the_token_that_ends_a_text(name: str, rewritings: Rewritings) -> None:
    """The output has a row per text only if all have equally many ends: no packed batch may rely on that."""
    model = load(name)
    result = rewritings.of_export(name, "padded")
    assert metadata_of(result)["id_rules"]["input_ids"]["last"] == END
    rows = texts(END)
    mask = np.arange(9) < np.asarray([row.size for row in rows])[:, None]
    ids = np.ones(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    session = ort.InferenceSession(result.model.SerializeToString(), providers=["CPUExecutionProvider"])
    types = {item.name: np.int64 if "64" in item.type else np.int32 for item in session.get_inputs()}
    feeds = {"input_ids": ids, "attention_mask": mask}
    (actual,) = session.run(None, {name: feeds[name].astype(kind) for name, kind in types.items()})
    for row, text in zip(actual, rows, strict=True):
        np.testing.assert_allclose(row, alone(model, text), atol=1e-4)
    with pytest.raises(RewriteError, match=r"sequences without tokens: choose the padded|not known.*choose the padded"):
        rewritings.of_export(name, "packed")


def test_wrong_models_are_found_with_any_ids() -> None:
    """What the original does with padding does not excuse wrong weights."""
    model = load("clip_text_ts17")
    wrong = ModelProto()
    wrong.CopyFrom(model)
    tensor = next(item for item in wrong.graph.initializer if item.name.endswith("final_layer_norm.bias"))
    values = numpy_helper.to_array(tensor).copy()
    values[3] += 0.1
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    result = rewrite(wrong)
    special = {"input_ids": SpecialIds((), True)}
    with pytest.raises(VerificationError, match="the original gives"):
        verify_ids(model, with_functions(result.model), metadata_of(result), special=special)


def test_what_is_looked_for_is_read_off_the_graph() -> None:
    assert special_ids(import_model(Model(pooled_at(END)))) == {"input_ids": SpecialIds((END,))}
    assert special_ids(import_model(Model(load("clip_text_ts17")))) == {"input_ids": SpecialIds((), True)}
    assert special_ids(import_model(Model(bert_model(1, HIDDEN, 4, 64)))) == {}


def test_ids_of_a_rule() -> None:
    mask = np.arange(4) < np.asarray([4, 2, 1])[:, None]
    ids = np.asarray([[0, 1, 2, 3], [2, 2, 2, 2], [5, 5, 5, 5]])
    rule = IdRule(2, 1, (1, 2), 6)
    kept = rule.at_tokens(ids, mask)
    assert (kept[~mask] == 1).all()
    assert kept[0, 3] == kept[1, 1] == kept[2, 0] == 2
    assert not np.isin(kept[0, :3], (1, 2)).any()
    assert IdRule.of(rule.to_dict()) == rule
    choices = rules_for({"ids": SpecialIds((0, 70), True), "types": SpecialIds((1,))}, {"ids": 60})
    assert {choice["ids"].last for choice in choices} == {0, 59, None}
    assert all(choice["ids"].padding != choice["ids"].last for choice in choices)


@pytest.mark.parametrize(("name", "interface"), [("clip_text_ts17", "packed"), ("bart_cls_dy18", "padded")])
def test_comparisons_take_the_same_ids(name: str, interface: str, tmp_path: Path) -> None:
    from padfree.builder.cli import main

    save_model(load(name), tmp_path / "model.onnx")
    options = ["--interface", interface, "--runners", "onnxrt-packed", "--max-seq-len", "20"]
    assert main(["compare", str(tmp_path / "model.onnx"), *options]) == 0
