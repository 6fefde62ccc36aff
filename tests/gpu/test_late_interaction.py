# SPDX-License-Identifier: Apache-2.0
"""Models with a vector for every token, as engines, against PyLate's vectors and the scores that follow from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import padfree
import pytest
from padfree.builder import cli

from tests.support.late_models import DOCUMENTS, MODELS, QUERIES, read, write_late_model

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

LEAST_COSINES = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.99}
"""Of every token's vector, with random weights and widths of 16 or 128."""
SIZES = {"sizes of colbertv2.0": ("colbert", 2), "of answerai": ("colbert", 4), "of ModernBERT": ("modernbert", 2)}
"""Heads of 64, 32 and 64 numbers in widths of 128, as in folders of the hub, to which the graph adds 8."""


@pytest.mark.parametrize("precision", list(LEAST_COSINES))
@pytest.mark.parametrize("name", ["colbert", "colbert_attends", "modernbert"])
def test_vectors_of_an_engine(name: str, precision: str, tmp_path: Path) -> None:
    assert name in MODELS
    folder, plan = write_late_model(name, tmp_path / "model"), tmp_path / "model.plan"
    sizes = ["--max-batch", "16", "--max-seq-len", "32"]
    assert cli.main(["build", str(folder), "-o", str(plan), "--precision", precision, *sizes]) == 0
    wanted = read(name)
    with padfree.Model(plan) as model:
        queries, documents = model.encode_query(QUERIES), model.encode_document(DOCUMENTS)
        scores = model.scores([(QUERIES[0], document) for document in DOCUMENTS])
    for actual, right in ((queries, wanted.queries), (documents, wanted.documents)):
        assert [rows.shape for rows in actual] == [rows.shape for rows in right]
        cosines = np.concatenate([(rows * others).sum(axis=1) for rows, others in zip(actual, right, strict=True)])
        assert cosines.min() > LEAST_COSINES[precision], cosines.min()
    expected = [float((queries[0] @ document.T).max(axis=1).sum()) for document in documents]
    np.testing.assert_allclose(scores, expected, atol=1e-2)


@pytest.mark.parametrize("precision", list(LEAST_COSINES))
@pytest.mark.parametrize("sizes", list(SIZES))
def test_heads_as_wide_as_in_folders_of_the_hub(sizes: str, precision: str, tmp_path: Path) -> None:
    name, heads = SIZES[sizes]
    folder, plan = write_late_model(name, tmp_path / "model", scale=8, heads=heads), tmp_path / "model.plan"
    limits = ["--max-batch", "64", "--max-seq-len", "32", "--precision", precision]
    assert cli.main(["build", str(folder), "-o", str(plan), *limits]) == 0
    queries, documents = QUERIES * 8, DOCUMENTS * 8
    with padfree.Model(plan) as model, padfree.Model(folder, backend="onnxruntime") as original:
        actual = [*model.encode_query(queries), *model.encode_document(documents)]
        wanted = [*original.encode_query(queries), *original.encode_document(documents)]
    cosines = np.concatenate([(rows * others).sum(axis=1) for rows, others in zip(actual, wanted, strict=True)])
    assert cosines.min() > LEAST_COSINES[precision], cosines.min()
