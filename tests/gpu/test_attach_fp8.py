# SPDX-License-Identifier: Apache-2.0
"""attach takes an fp8 engine of the folder's own model, and refuses one of another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.cli import main
from padfree.runtime import SessionError

from tests.support.folders import DEMO_DATA, TOKENIZER, WIDTH, write_folder

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt, pytest.mark.needs_torch]
LEAST_COSINE = 0.97
MOST = 64
TEXTS = (DEMO_DATA / "texts.txt").read_text("utf-8").splitlines()


def save(folder: Path, seed: int) -> Path:
    """Writes a folder of sentence-transformers with random weights."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=930, **sizes)).eval()
    modules = [("Pooling", {"pooling_mode": "mean", "embedding_dimension": WIDTH}), ("Normalize", {})]
    write_folder(folder, model=None, tokenizer=TOKENIZER, modules=modules, max_seq_length=MOST)
    model.save_pretrained(folder)
    return folder


def test_an_engine_in_fp8_is_attached(tmp_path: Path) -> None:
    st: Any = pytest.importorskip("sentence_transformers")
    from padfree.sentence_transformers import attach

    folder, other, plan = save(tmp_path / "one", 0), save(tmp_path / "other", 1), tmp_path / "fp8.plan"
    fp8 = ["--precision", "fp8", "--calibrate", str(DEMO_DATA / "texts.txt"), "--largest-loss", "1"]
    engine = ["--max-batch", "64", "--max-seq-len", str(MOST)]
    assert main(["build", str(folder), "-o", str(plan), *fp8, *engine]) == 0
    expected = st.SentenceTransformer(str(folder), device="cuda").encode(TEXTS)
    found = attach(st.SentenceTransformer(str(folder), device="cuda"), plan).encode(TEXTS)
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > LEAST_COSINE
    with pytest.raises(SessionError, match="vectors with a cosine of"):
        attach(st.SentenceTransformer(str(other), device="cuda"), plan)
