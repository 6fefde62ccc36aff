# SPDX-License-Identifier: Apache-2.0
"""Folders with weights alone: exported, packed, and compared with the model in PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import BuildError, cli
from padfree.builder.folders import source
from padfree.runtime import Session

from tests.support.folders import CONFIG, TOKENIZER, VOCABULARY, write_folder, write_safetensors
from tests.support.popular import FOLDERS, write_entry

TOLERANCE = 2e-5  # for numbers near 1, after two layers in float32
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
REQUEST = [[2, 7, 8, 9, 3], [2, 3], [2, *range(10, 40), 3]]
FAMILIES = {
    "BertModel": {},
    "RobertaModel": {"pad_token_id": 1},
    "MPNetModel": {"pad_token_id": 1},
    "DistilBertModel": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "ElectraModel": {"embedding_size": 32},
    "ModernBertModel": {},
    "DebertaV2Model": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "T5EncoderModel": {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 128, "d_kv": 16},
    "ErnieModel": {"use_task_id": False},  # these two are exported by torch, the others written by definitions
    "Data2VecTextModel": {"pad_token_id": 1},
    "ErnieForMaskedLM": {"use_task_id": False},
    "BertForSequenceClassification": {"num_labels": 1},
    "BertForMaskedLM": {},
}


def save(kind: str, folder: Path, **changes: Any) -> Any:
    """Saves a random model as save_pretrained writes it, with the tokenizer beside it."""
    import torch
    import transformers

    torch.manual_seed(0)
    model_class = getattr(transformers, kind)
    config = model_class.config_class(**{**SIZES, **FAMILIES[kind], **changes})
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases are zero otherwise
            parameter.add_(0.05 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    if config.pad_token_id == 0:  # as the tokenizer pads
        (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}  # the family's own class would make another one
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model


def run(folder: Path, tmp_path: Path, output: str, *options: str) -> list[Any]:
    packed = tmp_path / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed), *options]) == 0
    with Session(packed) as session:
        return session.run(REQUEST)[output]


def by_torch(model: Any, name: str) -> list[Any]:
    import torch

    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids]))[name][0].numpy() for ids in REQUEST]


@pytest.mark.needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("kind", [name for name in FAMILIES if "For" not in name])
def test_rows_of_tokens_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    model = save(kind, tmp_path / "model")
    actual = run(tmp_path / "model", tmp_path, "sentence_embedding", "--pooling", "mean")
    for vector, rows in zip(actual, by_torch(model, "last_hidden_state"), strict=True):
        np.testing.assert_allclose(vector, rows.mean(0), atol=TOLERANCE)


@pytest.mark.needs_torch
@pytest.mark.slow
def test_rows_are_pooled_by_hand_whatever_head_there_is(tmp_path: Path) -> None:
    model = save("BertForMaskedLM", tmp_path / "model")
    actual = run(tmp_path / "model", tmp_path, "sentence_embedding", "--pooling", "mean")
    for vector, rows in zip(actual, by_torch(model.bert, "last_hidden_state"), strict=True):
        np.testing.assert_allclose(vector, rows.mean(0), atol=TOLERANCE)


@pytest.mark.needs_torch
@pytest.mark.slow
def test_a_cross_encoder_gives_scores(tmp_path: Path) -> None:
    model = save("BertForSequenceClassification", tmp_path / "model")
    actual = run(tmp_path / "model", tmp_path, "scores")
    wanted = [1 / (1 + np.exp(-logits)) for logits in by_torch(model, "logits")]
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)


@pytest.mark.needs_torch
@pytest.mark.slow
def test_a_sparse_encoder_gives_weights_of_the_vocabulary(tmp_path: Path) -> None:
    model = save("BertForMaskedLM", tmp_path / "model")
    write_folder(tmp_path / "files", model=None, modules=[("SpladePooling", {"pooling_strategy": "max"})])
    for name in ("modules.json", "1_SpladePooling"):
        (tmp_path / "files" / name).rename(tmp_path / "model" / name)
    actual = run(tmp_path / "model", tmp_path, "sentence_embedding")
    wanted = [np.log1p(np.maximum(rows, 0)).max(0) for rows in by_torch(model, "logits")]
    np.testing.assert_allclose(actual, wanted, atol=TOLERANCE)


@pytest.mark.needs_torch
def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    save("BertModel", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    wanted = r"the weights lack .*encoder\.layer\.2\..*they belong to different models"
    with pytest.raises(BuildError, match=wanted), source.opened(tmp_path / "model"):
        pass


@pytest.mark.needs_torch
def test_weights_that_the_export_would_leave_out_are_refused(tmp_path: Path) -> None:
    """The folder has a projection after BERT, which no class of transformers has, and says nothing of it."""
    (entry,) = [item for item in FOLDERS if item["folder"] == "colbert-ir/colbertv2.0"]
    folder = write_entry(entry, tmp_path)
    (folder / "config.json").write_text(json.dumps({**entry["config"], "architectures": ["BertModel"]}))
    wanted = r"leaves out linear\.weight \(1 in all\) of its weights as AutoModel"
    with pytest.raises(BuildError, match=wanted), source.opened(folder):
        pass


@pytest.mark.needs_torch
@pytest.mark.slow
def test_heads_of_other_tasks_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = save("ErnieForMaskedLM", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["ErnieModel"]}))
    actual = run(folder, tmp_path, "last_hidden_state")
    for rows, wanted in zip(actual, by_torch(model.ernie, "last_hidden_state"), strict=True):
        np.testing.assert_allclose(rows, wanted, atol=TOLERANCE)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "model", model=None, config={"model_type": "mobilebert"})
    table = np.zeros((VOCABULARY, CONFIG["hidden_size"]), np.float32)
    write_safetensors(folder / "model.safetensors", {"embeddings.word_embeddings.weight": table})
    monkeypatch.setattr("padfree.builder.folders.export.PACKAGES", ("torch_that_nobody_has",))
    wanted = "exporting them needs torch_that_nobody_has, not installed here: pip install"
    said: list[str] = []
    with pytest.raises(BuildError, match=wanted), source.opened(folder, say=said.append):
        pass
    assert not [line for line in said if "exporting" in line]  # an export that cannot run is not announced


def test_no_engine_no_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no engine can be built, that is said before any export."""

    def refuse(*_given: object, **_options: object) -> None:
        raise BuildError("engines cannot be built here")

    folder = write_folder(tmp_path / "model", model=None, config={"model_type": "mobilebert"})
    table = np.zeros((VOCABULARY, CONFIG["hidden_size"]), np.float32)
    write_safetensors(folder / "model.safetensors", {"embeddings.word_embeddings.weight": table})
    monkeypatch.setattr("padfree.builder.folders.export.PACKAGES", ())
    monkeypatch.setattr("padfree.builder.engine.build.check_machine", refuse)
    assert cli.main(["build", str(folder), "-o", str(tmp_path / "model.plan")]) == 1
    shown = capsys.readouterr().err
    assert "engines cannot be built here" in shown
    assert "exporting" not in shown
