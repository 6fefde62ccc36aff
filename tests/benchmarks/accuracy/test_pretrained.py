# SPDX-License-Identifier: Apache-2.0
"""The benchmark of published sentence encoders, on a small one made here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.pretrained_models import cosines, main
from benchmarks.accuracy.texts import texts_at_hand

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "a", "of", "to", "is", "in", "and", "that", "it", "file", "name"]


@pytest.mark.slow
def test_texts_are_different_and_of_very_different_lengths() -> None:
    texts = texts_at_hand(300)
    assert len(texts) == len(set(texts)) == 300
    assert max(map(len, texts)) > 20 * min(map(len, texts))
    assert len(texts_at_hand(7)) == 7


def test_cosines_are_of_rows() -> None:
    wanted = np.asarray([[1.0, 0.0], [3.0, 4.0]], np.float32)
    actual = np.asarray([[0.0, 2.0], [6.0, 8.0]], np.float16)
    assert cosines(wanted, actual).tolist() == [0.0, 1.0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sentence encoder as sentence-transformers writes it, with random weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=96, max_position_embeddings=24, initializer_range=0.2)
    path = tmp_path / "small"
    transformers.BertModel(config).save_pretrained(path)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pretrained", *arguments])
    return main()


def test_a_model_is_prepared_and_then_measured(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, records = tmp_path / "work", tmp_path / "pretrained.jsonl"
    assert run(monkeypatch, "--work", str(work), "--texts", "40", "--prepare-only", str(folder)) == 0
    assert sorted(path.name for path in (work / "small").iterdir()) == ["answers.npz", "packed_fp16.onnx"]
    assert run(monkeypatch, "--work", str(work), "--without-tensorrt", "--json", str(records)) == 0
    record = json.loads(records.read_text())
    assert record["case"] == "small, fp16"
    assert record["texts"] == 40
    assert record["longest"] <= 20
    assert record["below_goal"] == record["torch_fp16"]["below_goal"] == 0
    assert 0.99999 <= record["cosine_worst"] <= record["cosine_mean"] < 1


def test_another_pooling_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with pytest.raises(ValueError, match="not the mean over tokens"):
        run(monkeypatch, "--work", str(tmp_path / "work"), str(folder))
