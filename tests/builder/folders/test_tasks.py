# SPDX-License-Identifier: Apache-2.0
"""Folders for other tasks than sentence vectors: cross-encoders, classifiers, sparse encoders, encoders alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from padfree.builder import BuildError, cli
from padfree.builder.folders.folder import read_folder
from padfree.builder.folders.source import opened
from padfree.runtime import Session
from padfree.runtime.texts import TextReader

from tests.support.folders import ROOT, write_folder, write_json, write_small_tokenizer

Array = npt.NDArray[Any]

EXPORTS = ROOT / "tests" / "fixtures" / "optimum"
IDS, WIDTH, LABELS = 64, 16, 3
SIZES = {"vocab_size": IDS, "hidden_size": WIDTH, "max_position_embeddings": 40}
PAIRS = (("word1 word2", "word3"), ("word9", "word4 word5 word6 word7"))
TOLERANCE = 2e-5  # for numbers near 1, after two layers in float32


def folder_for(tmp_path: Path, export: str, config: Mapping[str, Any], **more: Any) -> Path:
    tokenizer = write_small_tokenizer(tmp_path / "small.json", IDS)
    model = EXPORTS / export
    return write_folder(tmp_path / "model", model=model, config={**SIZES, **config}, tokenizer=tokenizer, **more)


def pack(folder: Path, tmp_path: Path, *options: str) -> Path:
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed), *options]) == 0
    return packed


def original(export: str, request: Mapping[str, list[list[int]]], output: str) -> list[Array]:
    """The outputs of the export itself for every row of a request, each alone."""
    session = ort.InferenceSession(str(EXPORTS / export), providers=["CPUExecutionProvider"])
    results = []
    for ids, types in zip(request["input_ids"], request["token_type_ids"], strict=True):
        feeds = {"input_ids": ids, "token_type_ids": types, "attention_mask": [1] * len(ids)}
        arrays = {name: np.asarray([values], np.int64) for name, values in feeds.items()}
        results.append(session.run([output], arrays)[0][0])
    return results


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("torch.nn.modules.activation.Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("torch.nn.modules.linear.Identity", lambda x: x),
        (None, lambda x: x),  # the default for several labels
    ],
)
def test_a_cross_encoder_gives_scores(activation: str | None, function: Any, tmp_path: Path) -> None:
    settings = {"model_type": "CrossEncoder"}
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "maybe", "2": "yes"}}
    if activation:
        config["sentence_transformers"] = {"activation_fn": activation, "version": "4.0.0"}
    folder = folder_for(tmp_path, "bert_sequence_classification.onnx", config, settings=settings)
    packed = pack(folder, tmp_path, "--strict")
    with Session(packed) as session:
        info = session.metadata.text
        assert info is not None
        assert (info.task, info.labels, info.takes_pairs) == ("cross-encoder", ("no", "maybe", "yes"), True)
        request = TextReader(packed, session.metadata).read(PAIRS).request
        assert request["token_type_ids"][0] == [0, 0, 0, 0, 1, 1]
        actual = session.run(request)["scores"]
    wanted = function(np.stack(original("bert_sequence_classification.onnx", request, "logits")))
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)


def test_settings_without_modules_have_no_say(tmp_path: Path) -> None:
    """sentence-transformers 6.2 reads them with modules.json alone: CrossEncoder takes a sigmoid for one label."""
    settings = {
        "model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity", "prompts": {"query": "q: "},
        "default_prompt_name": "query",
    }  # fmt: skip
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    folder = read_folder(folder_for(tmp_path, "bert_sequence_classification.onnx", config, settings=settings))
    assert (folder.task, folder.head.scores) == ("cross-encoder", "sigmoid")
    assert (dict(folder.text.prompts), folder.text.default_prompt) == ({}, None)
    (note,) = (note for note in folder.notes if "modules.json" in note)
    assert "no say in activation_fn, default_prompt_name, prompts without modules.json" in note


def test_one_label_is_a_cross_encoder_with_a_sigmoid(tmp_path: Path) -> None:
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    folder = read_folder(folder_for(tmp_path, "bert_sequence_classification.onnx", config))
    assert (folder.task, folder.head.scores) == ("cross-encoder", "sigmoid")
    config = {"architectures": ["BertForSequenceClassification"], "sbert_ce_default_activation_function": "os.system"}
    write_json(folder.path / "config.json", {"model_type": "bert", **config})
    with pytest.raises(BuildError, match=r"config.json: the activation is 'os.system', allowed: Identity, Tanh"):
        read_folder(folder.path)


def test_a_classifier_gives_its_logits(tmp_path: Path) -> None:
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "bad", "1": "good", "2": "best"}}
    packed = pack(folder_for(tmp_path, "bert_sequence_classification.onnx", config), tmp_path)
    with Session(packed) as session:
        assert [item.name for item in session.metadata.outputs] == ["logits"]
        assert session.metadata.text is not None
        assert (session.metadata.text.task, len(session.metadata.text.labels)) == ("text-classification", LABELS)


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_a_sparse_encoder_gives_weights_of_the_vocabulary(strategy: str, activation: str, tmp_path: Path) -> None:
    module = {"pooling_strategy": strategy, "activation_function": activation}
    config = {"architectures": ["BertForMaskedLM"]}
    folder = folder_for(tmp_path, "bert_masked_lm.onnx", config, modules=[("SpladePooling", module)])
    packed = pack(folder, tmp_path, "--strict")
    with Session(packed) as session:
        assert session.metadata.text is not None
        assert (session.metadata.text.task, session.metadata.text.pooling) == ("sparse-embedding", ("splade",))
        request = TextReader(packed, session.metadata).read([" ".join(pair) for pair in PAIRS]).request
        actual = session.run(request)["sentence_embedding"]
    for vector, logits in zip(actual, original("bert_masked_lm.onnx", request, "logits"), strict=True):
        rows = np.log1p(np.maximum(logits, 0))
        rows = rows if activation == "relu" else np.log1p(rows)
        np.testing.assert_allclose(vector, rows.max(0) if strategy == "max" else rows.sum(0), atol=10 * TOLERANCE)


def test_an_encoder_alone_gives_rows_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = pack(folder_for(tmp_path, "bert.onnx", {}), tmp_path)
    assert "has no modules.json" in capsys.readouterr().err
    with Session(packed) as session:
        assert [item.name for item in session.metadata.outputs] == ["last_hidden_state"]


def test_a_file_with_sentence_vectors_is_taken_as_it_is(tmp_path: Path) -> None:
    modules = [("Pooling", {"pooling_mode": "mean"})]
    folder = folder_for(tmp_path, "bert.onnx", {}, modules=modules)
    with opened(folder) as source:
        (folder / "onnx" / "model.onnx").write_bytes(source.path.read_bytes())
        nodes = len(onnx.load(str(source.path)).graph.node)
    with opened(folder) as source:
        assert len(onnx.load(str(source.path)).graph.node) == nodes


def test_outputs_that_are_not_there_are_named(tmp_path: Path) -> None:
    folder = folder_for(tmp_path, "bert.onnx", {}, modules=[("Pooling", {"pooling_mode": "mean"})])
    arguments = ["optimize", str(folder), "-o", str(tmp_path / "packed.onnx")]
    assert cli.main([*arguments, "--outputs", "sentence_embedding,last_hidden_state"]) == 0
    with Session(tmp_path / "packed.onnx") as session:
        assert [item.name for item in session.metadata.outputs] == ["sentence_embedding", "last_hidden_state"]
    assert cli.main([*arguments, "--outputs", "vectors"]) == 1
