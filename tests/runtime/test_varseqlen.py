# SPDX-License-Identifier: Apache-2.0
"""The interface varseqlen: the inputs of NVIDIA's variable-length BERT engines, from file to session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from padfree.builder import BuildOptions
from padfree.builder.cli import main
from padfree.builder.engine.preparation import check_rewritten
from padfree.builder.engine.profile import ProfileOptions, choose_profile, shape_ranges
from padfree.builder.errors import BuildError
from padfree.builder.triton.serving import ServingOptions, choose
from padfree.contract.metadata import Metadata, parse_metadata
from padfree.onnx_tools import RewriteError, RewriteResult, load_model, rewrite, save_model
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Batcher, FirstCome
from padfree.runtime.text.tasks import Choices, describe
from padfree.runtime.texts import TextReader

from tests.support.encoder import TOKENS, one_layer, with_output
from tests.support.exports import metadata_of, session, truth
from tests.support.families import FOLDER, SPECIAL_IDS, VOCABULARY
from tests.support.folders import write_folder
from tests.support.messages import for_parser

INPUTS = ["input_ids", "segment_ids", "cu_seqlens", "max_seqlen"]
LENGTHS = (9, 1, 4, 17, 6)
FAMILIES = (
    "bert_dynamo_eager", "bert_pooler_torchscript", "bert_mean_l2_torchscript", "roberta_torchscript_sdpa",
    "roberta_dynamo_eager", "distilbert_torchscript_sdpa", "modernbert_dynamo_sdpa", "mpnet_torchscript_eager",
    "deberta_v3_torchscript_eager",
)  # fmt: skip


def rewrite_fixture(name: str, **options: Any) -> RewriteResult:
    return rewrite(FOLDER / f"{name}.onnx", interface="varseqlen", **options)


def typed_metadata(result: RewriteResult) -> Metadata:
    return parse_metadata(dict(metadata_of(result)), "the model")


def draw(name: str) -> list[dict[str, np.ndarray]]:
    """Random sequences for the original of this name; each has its values by the inputs' names."""
    rng = np.random.default_rng(5)
    inputs = [value.name for value in load_model(FOLDER / f"{name}.onnx").graph.input]

    def values(key: str, length: int) -> np.ndarray:
        if "mask" in key:
            return np.ones(length, np.int64)
        return rng.integers(0, 2, length) if "type" in key else rng.integers(SPECIAL_IDS, VOCABULARY, length)

    return [{key: values(key, length) for key in inputs} for length in LENGTHS]


def as_callers_give_it(requests: list[dict[str, np.ndarray]], filler: int = 0) -> dict[str, np.ndarray]:
    """The inputs as a caller of NVIDIA's engines passes them."""
    ids = np.concatenate([row["input_ids"] for row in requests])
    types = np.concatenate([row.get("token_type_ids", np.zeros_like(row["input_ids"])) for row in requests])
    return {
        "input_ids": np.append(ids, [5] * filler).astype(np.int32),
        "segment_ids": np.append(types, [0] * filler).astype(np.int32),
        "cu_seqlens": np.cumsum([0, *(len(row["input_ids"]) for row in requests)]).astype(np.int32),
        "max_seqlen": np.zeros(max(LENGTHS), np.int32),
    }


def expected_rows(name: str, requests: list[dict[str, np.ndarray]], outputs: list[str]) -> list[list[np.ndarray]]:
    return truth(load_model(FOLDER / f"{name}.onnx"), requests, outputs)


@pytest.mark.parametrize("name", FAMILIES)
def test_callers_of_nvidias_engines_get_the_originals_numbers(name: str) -> None:
    result, requests = rewrite_fixture(name), draw(name)
    graph = result.model.graph
    assert [value.name for value in graph.input] == INPUTS
    for value in graph.input:
        assert value.type.tensor_type.elem_type == TensorProto.INT32
        assert len(value.type.tensor_type.shape.dim) == 1
        assert not value.type.tensor_type.shape.dim[0].dim_value
    metadata = typed_metadata(result)
    outputs = [item.name for item in metadata.outputs]
    for filler in (0, 7):
        actual = session(result.model).run(outputs, as_callers_give_it(requests, filler))
        for sequence, rows in enumerate(expected_rows(name, requests, outputs)):
            begin, end = sum(LENGTHS[:sequence]), sum(LENGTHS[: sequence + 1])
            for item, whole, one in zip(metadata.outputs, actual, rows, strict=True):
                own = whole[begin:end] if item.layout == "packed" else whole[sequence]
                np.testing.assert_allclose(own, one[0], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_session_takes_the_names_of_both(name: str, tmp_path: Path) -> None:
    path, source = tmp_path / "model.onnx", draw(name)
    save_model(rewrite_fixture(name, verify=False).model, path)
    keys = [key for key in source[0] if "mask" not in key]
    with Session(path) as opened:
        outputs = [item.name for item in opened.metadata.outputs]
        request = {key: [row[key] for row in source] for key in keys}
        first = opened.run(request)
        renamed = {"segment_ids" if "type" in key else key: value for key, value in request.items()}
        second = opened.run(renamed)
        ids = np.concatenate([row["input_ids"] for row in source])
        types = {key: np.concatenate([row[key] for row in source]) for key in keys if "type" in key}
        packed = opened.run_packed({"input_ids": ids, **types}, list(LENGTHS))
        assert opened.run([[]])[outputs[0]][0].shape[-1] == first[outputs[0]][0].shape[-1]
        with pytest.raises(SessionError, match="unknown input 'cu_seqlens'"):
            opened.run({"input_ids": [[5]], "cu_seqlens": [[0, 1]]})
    for sequence, rows in enumerate(expected_rows(name, source, outputs)):
        for key, one in zip(outputs, rows, strict=True):
            np.testing.assert_allclose(first[key][sequence], one[0], atol=5e-5, rtol=1e-4)
            np.testing.assert_array_equal(first[key][sequence], second[key][sequence])
    assert packed[outputs[0]].shape[0] in (sum(LENGTHS), len(LENGTHS))


def test_metadata_and_profile() -> None:
    metadata = typed_metadata(rewrite_fixture("bert_dynamo_eager", verify=False))
    assert (metadata.interface, metadata.is_packed) == ("varseqlen", True)
    assert [(item.name, item.role, item.original) for item in metadata.inputs] == [
        ("input_ids", "tokens", None), ("segment_ids", "tokens", "token_type_ids"),
        ("cu_seqlens", "cu_seqlens", None), ("max_seqlen", "max_seqlen", None),
    ]  # fmt: skip
    assert metadata.inputs[0].limit == VOCABULARY
    assert metadata.inputs[1].limit == 2
    profile = choose_profile(metadata, ProfileOptions(max_batch=8, max_seq_len=16, max_tokens=100, opt_tokens=60))
    ranges = {item.name: (item.minimum, item.optimum, item.maximum) for item in shape_ranges(metadata, profile)}
    assert ranges["segment_ids"] == ((1,), (60,), (100,))
    assert ranges["cu_seqlens"] == ((2,), (9,), (9,))
    assert ranges["max_seqlen"] == ((1,), (16,), (100,))


def test_ids_that_may_not_occur_are_still_refused(tmp_path: Path) -> None:
    save_model(rewrite_fixture("roberta_torchscript_sdpa", verify=False).model, path := tmp_path / "model.onnx")
    with Session(path) as opened:
        excluded = opened.metadata.ids_input().excluded
        assert excluded
        with pytest.raises(SessionError, match="stands for padding"):
            opened.run([[5, excluded[0]]])


def test_without_token_types_segment_ids_are_there_and_not_read() -> None:
    result, requests = rewrite_fixture("distilbert_torchscript_sdpa", verify=False), draw("distilbert_torchscript_sdpa")
    feeds = as_callers_give_it(requests)
    opened = session(result.model)
    zeros = opened.run(None, feeds)[0]
    feeds["segment_ids"] = np.ones_like(feeds["segment_ids"])
    np.testing.assert_array_equal(opened.run(None, feeds)[0], zeros)


@pytest.mark.parametrize("name", ["bert_dynamo_eager", "distilbert_torchscript_sdpa", "mpnet_torchscript_eager"])
def test_the_parser_gets_all_four_inputs(name: str) -> None:
    model = for_parser(rewrite_fixture(name, verify=False).model, 32)
    assert [value.name for value in model.graph.input] == INPUTS


def test_another_input_is_refused() -> None:
    from tests.support.exports import load

    with pytest.raises(RewriteError, match="has an input 'bbox', for which the interface varseqlen has no place"):
        rewrite(load("layoutlm_torchscript"), interface="varseqlen", verify=False)


def test_an_output_with_a_name_of_the_interface_is_refused() -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            if name == model.graph.output[0].name:
                node.output[position] = "cu_seqlens"
    model.graph.output[0].name = "cu_seqlens"
    with pytest.raises(RewriteError, match="output 'cu_seqlens' has the name of an input of the interface varseqlen"):
        rewrite(model, interface="varseqlen", verify=False)


def test_tensors_inside_and_ids_may_have_any_names() -> None:
    builder, hidden = one_layer()
    model = with_output(hidden, builder, TOKENS)
    inner = model.graph.node[0].output[0]
    for node in model.graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = {"input_ids": "tokens", inner: "segment_ids"}.get(name, name)
    for value in model.graph.input:
        value.name = "tokens" if value.name == "input_ids" else value.name
    result = rewrite(model, interface="varseqlen")
    assert [value.name for value in result.model.graph.input] == INPUTS
    assert typed_metadata(result).inputs[0].original == "tokens"
    inputs = [{"input_ids": np.arange(1, 1 + length)} for length in (3, 5)]
    feeds = as_callers_give_it(inputs)
    original = [{"tokens": row["input_ids"], "attention_mask": np.ones_like(row["input_ids"])} for row in inputs]
    rows = truth(model, original, [model.graph.output[0].name])
    actual = session(result.model).run(None, feeds)[0]
    np.testing.assert_allclose(actual, np.concatenate([row[0][0] for row in rows]), atol=2e-5)


def test_a_rewritten_model_keeps_its_interface() -> None:
    model = rewrite_fixture("bert_dynamo_eager", verify=False).model
    options = BuildOptions("varseqlen", precision=None, verify=False)
    check_rewritten(model, options)
    with pytest.raises(BuildError, match="rewritten with interface varseqlen, packed was asked for"):
        check_rewritten(model, replace(options, interface="packed"))


def test_triton_serves_it_with_the_python_backend(tmp_path: Path) -> None:
    save_model(rewrite_fixture("bert_dynamo_eager", verify=False).model, path := tmp_path / "model.onnx")
    assert choose(path, ServingOptions(name="bert")).backend == "python"


@pytest.mark.parametrize("name", ["bert_dynamo_eager", "distilbert_torchscript_sdpa"])
def test_the_commands_take_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original, path = FOLDER / f"{name}.onnx", tmp_path / "model.onnx"
    assert main(["optimize", str(original), "-o", str(path), "--interface", "varseqlen"]) == 0
    assert main(["inspect", str(path)]) == 0
    assert "cu_seqlens" in (shown := capsys.readouterr().out)
    assert "varseqlen interface" in shown
    (tmp_path / "batch.jsonl").write_text("[5, 6, 7]\n[8]\n", encoding="utf-8")
    assert main(["run", str(path), "--input", str(tmp_path / "batch.jsonl"), "-o", str(tmp_path / "out.npz")]) == 0
    assert main(["compare", str(original), str(path)]) == 0
    onnx.checker.check_model(onnx.load(path))


def test_texts_are_served_by_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", modules=[("Pooling", {"pooling_mode_mean_tokens": True})])
    answers = []
    for interface in ("packed", "varseqlen"):
        path = tmp_path / f"{interface}.onnx"
        assert main(["optimize", str(folder), "-o", str(path), "--interface", interface, "--no-verify"]) == 0
        with Session(path) as opened:
            served = describe(path, opened.metadata, Choices())
            tokens = TextReader(path, opened.metadata).read(["a parcel", ("one text", "and another")])
            batcher = Batcher(opened, FirstCome(opened.budget))
            packed = {name: np.concatenate(tokens.request[name]) for name in served.inputs.token_names}
            answers.append(batcher.submit_group(packed, seq_lens=tokens.seq_lens).result(30)[served.output])
            batcher.close()
    for one, two in zip(*answers, strict=True):
        np.testing.assert_array_equal(one, two)
