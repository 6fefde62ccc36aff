# SPDX-License-Identifier: Apache-2.0
"""Folders of classifiers and taggers whose words are word0, word1, ..., and what their exported models give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from tokenizers import Tokenizer

from .folders import ROOT, write_folder, write_json, write_small_tokenizer

Array = npt.NDArray[Any]

OPTIMUM = ROOT / "tests" / "fixtures" / "optimum"
SMALL = {"vocab_size": 64, "hidden_size": 16, "max_position_embeddings": 40}


def names_of(labels: Sequence[str]) -> dict[str, str]:
    return {str(at): name for at, name in enumerate(labels)}


def small_folder(folder: Path, kind: str, labels: Sequence[str], **config: Any) -> Path:
    """Writes a folder of a classifier or tagger whose words are word0, word1, ..."""
    names = {"sequence": "BertForSequenceClassification", "token": "BertForTokenClassification"}
    tokenizer = write_small_tokenizer(folder.parent / f"{folder.name}.json", 64)
    entries = {**SMALL, "architectures": [names[kind]], "id2label": names_of(labels), **config}
    file = OPTIMUM / f"bert_{kind}_classification.onnx"
    write_folder(folder, model=file, config=entries, tokenizer=tokenizer)
    write_json(folder / "tokenizer_config.json", {"model_max_length": 40, "do_lower_case": False})
    return folder


def logits_of(kind: str, tokenizer: Path, texts: Sequence[str]) -> list[Array]:
    """The exported model's logits for every text alone."""
    session = ort.InferenceSession(str(OPTIMUM / f"bert_{kind}_classification.onnx"))
    encoder, actual = Tokenizer.from_file(str(tokenizer)), []
    for text in texts:
        one = encoder.encode(text)
        feeds = {"input_ids": one.ids, "attention_mask": one.attention_mask, "token_type_ids": one.type_ids}
        actual.append(session.run(None, {name: np.asarray([row], np.int64) for name, row in feeds.items()})[0][0])
    return actual
