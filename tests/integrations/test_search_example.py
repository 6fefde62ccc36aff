# SPDX-License-Identifier: Apache-2.0
"""The example of retrieval with a reranker finds what sentence-transformers itself finds."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs_torch
st: Any = pytest.importorskip("sentence_transformers")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sentence_transformers_search.py"


def test_it_finds_what_the_models_find(saved: Any, packed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [saved(), saved("BertForSequenceClassification", seed=1, num_labels=1)]
    arguments = [str(path) for folder in folders for path in (folder, packed(folder))]
    capsys.readouterr()
    example = runpy.run_path(str(EXAMPLE))
    example["main"](*arguments)
    score, match = re.fullmatch(r"(\S+) (.*)\n", capsys.readouterr().out.splitlines(keepends=True)[-1]).groups()  # type: ignore[union-attr]
    model, reranker = st.SentenceTransformer(str(folders[0])), st.CrossEncoder(str(folders[1]))
    question, texts = example["QUESTION"], example["TEXTS"]
    near = model.similarity(model.encode_query([question]), model.encode_document(texts))[0].argsort()[-2:]
    scores = {texts[at]: float(reranker.predict([(question, texts[at])])[0]) for at in near.tolist()}
    assert match == max(scores, key=lambda text: scores[text])
    assert float(score) == pytest.approx(scores[match], abs=1e-3)
