# SPDX-License-Identifier: Apache-2.0
"""A folder of sentence-transformers as an engine: its sentence vectors of texts against those of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from padfree.builder import cli

from tests.support.folders import DEMO_DATA, write_folder

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

LEAST_COSINE = 0.999  # fp16 against fp32, random weights


def test_a_folder_becomes_an_engine_that_takes_texts(tmp_path: Path) -> None:
    modules = [("Pooling", {"pooling_mode": "mean"}), ("Normalize", {})]
    folder = write_folder(tmp_path / "model", modules=modules, max_seq_length=64)
    plan, texts = tmp_path / "model.plan", DEMO_DATA / "texts.txt"
    assert cli.main(["build", str(folder), "-o", str(plan), "--max-batch", "8", "--max-seq-len", "128"]) == 0
    found = []
    for number, model in enumerate((plan, folder)):
        out = tmp_path / f"{number}.npz"
        assert cli.main(["run", str(model), "--input", str(texts), "-o", str(out)]) == 0
        with np.load(out) as results:
            found.append(results["sentence_embedding"].astype(np.float32))
    assert (found[0] * found[1]).sum(axis=1).min() > LEAST_COSINE
