# SPDX-License-Identifier: Apache-2.0
"""Whole folders of sentence-transformers without torch: rows from transformers, pooled and transformed in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder import cli
from padfree.builder.folders.head import POOLINGS
from padfree.runtime import Session

from tests.support import tiny_folders
from tests.support.folders import pool, write_dense, write_json

TOLERANCE = 1e-5
WIDTH, DENSE = 16, 12
KIND = "sentence_transformers.models"


def write_chain(name: str, folder: Path, modules: list[tuple[str, Mapping[str, Any]]]) -> Path:
    """Writes a reference's folder with modules after the encoder."""
    tiny_folders.write_reference(tiny_folders.read(name), folder)
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{KIND}.Transformer"}]
    for number, (module, settings) in enumerate(modules, 1):
        path = f"{number}_{module}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": f"{KIND}.{module}"})
        write_json(folder / path / "config.json", settings)
    write_json(folder / "modules.json", listed)
    return folder


def vectors(folder: Path, packed: Path) -> list[npt.NDArray[np.float32]]:
    """The vectors that `padfree optimize` and a session give for the requests."""
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    with Session(packed) as session:
        return list(session.run([list(ids) for ids in tiny_folders.REQUESTS])["sentence_embedding"])


@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("name", ["bert_without_types", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_poolings(name: str, mode: str, tmp_path: Path) -> None:
    actual = vectors(write_chain(name, tmp_path / "model", [("Pooling", {"pooling_mode": mode})]), tmp_path / "p.onnx")
    for vector, rows in zip(actual, tiny_folders.read(name).outputs["last_hidden_state"], strict=True):
        np.testing.assert_allclose(vector, pool(rows, mode), atol=TOLERANCE * max(1.0, float(np.abs(rows).max())))


def test_dense_and_normalize(tmp_path: Path) -> None:
    settings = {"in_features": WIDTH, "out_features": DENSE, "activation_function": "torch.nn.modules.activation.Tanh"}
    modules = [("Pooling", {"pooling_mode": "mean"}), ("Dense", settings), ("Normalize", {})]
    folder = write_chain("bert_without_types", tmp_path / "model", modules)
    write_dense(folder, 2, DENSE, WIDTH, seed=3)
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((DENSE, WIDTH), np.float32) / np.float32(np.sqrt(WIDTH))
    bias = rng.standard_normal(DENSE, np.float32)
    rows_of = tiny_folders.read("bert_without_types").outputs["last_hidden_state"]
    for vector, rows in zip(vectors(folder, tmp_path / "p.onnx"), rows_of, strict=True):
        wanted = np.tanh(weight @ rows.mean(0) + bias)
        np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), atol=TOLERANCE)


@pytest.mark.needs_torch
@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    """The library's own modules, without its tokenizer, give the same vectors."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from transformers import AutoModel

    modules = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
    folder = write_chain("modernbert", tmp_path / "model", modules)
    model, pooling = AutoModel.from_pretrained(folder, dtype=torch.float32).eval(), Pooling(WIDTH, "mean")
    for ids, vector in zip(tiny_folders.REQUESTS, vectors(folder, tmp_path / "p.onnx"), strict=True):
        mask = torch.ones(1, len(ids), dtype=torch.long)
        with torch.no_grad():
            rows = model(input_ids=torch.tensor([ids]), attention_mask=mask).last_hidden_state
            result = Normalize()(pooling({"token_embeddings": rows, "attention_mask": mask}))
        np.testing.assert_allclose(vector, result["sentence_embedding"][0].numpy(), atol=TOLERANCE)
