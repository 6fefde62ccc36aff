# SPDX-License-Identifier: Apache-2.0
"""The columns of a result: dense and sparse vectors, vectors of tokens, scores of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from padfree.builder.cli import main
from padfree.bulk import Request
from padfree.bulk.heads import LabelHead, SparseHead
from padfree.contract.texts import CLASSES, REGRESSION, SPARSE, TextInfo
from padfree.runtime import Session
from padfree.runtime.request import RaggedBatch
from padfree.runtime.texts import TextReader
from pyarrow import parquet

from tests.support.bulk_jobs import DIGEST, run_here, texts, write_lines
from tests.support.folders import WIDTH, write_folder
from tests.support.late_models import DOCUMENTS, QUERIES, write_late_model
from tests.support.late_models import read as read_late_answers
from tests.support.served_models import expected_rows, write_model


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dense_vectors(tmp_path: Path, embedder: Path, dtype: str) -> None:
    some = texts(50)
    write_lines(tmp_path / "in.jsonl", [{"body": text} for text in some])
    request = Request([str(tmp_path / "in.jsonl")], str(tmp_path / "out"), embedder, ("body",), dtype=dtype)
    run_here(request)
    table = parquet.read_table(tmp_path / "out")
    kind = {"float16": pa.float16(), "float32": pa.float32()}[dtype]
    assert table.schema.field("embedding").type == pa.list_(kind, 8)
    assert table.column("id").to_pylist() == list(range(50))
    tolerance = {"float16": 2e-2, "float32": 1e-4}[dtype]  # sums up to some tens
    np.testing.assert_allclose(table.column("embedding").to_pylist(), expected_rows(some), rtol=1e-3, atol=tolerance)


def test_prompts_stand_in_front(tmp_path: Path, embedder: Path) -> None:
    some = texts(5)
    write_lines(tmp_path / "in.jsonl", [{"text": text} for text in some])
    run_here(Request([str(tmp_path / "in.jsonl")], str(tmp_path / "out"), embedder, prompt="query"))
    actual = parquet.read_table(tmp_path / "out").column("embedding").to_pylist()
    np.testing.assert_allclose(actual, expected_rows([f"query: {text}" for text in some]), rtol=1e-4, atol=1e-4)


def test_vectors_of_tokens(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    model, some = tmp_path / "model.onnx", texts(30)
    assert main(["optimize", str(folder), "-o", str(model), "--no-verify"]) == 0
    (tmp_path / "in.txt").write_text("\n".join(some), encoding="utf-8")
    request = Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), model, head="last_hidden_state", shard_rows=9)
    assert run_here(request).report.shards == 4
    table = parquet.read_table(tmp_path / "out")
    assert table.schema.field("embeddings").type == pa.list_(pa.list_(pa.float32(), WIDTH))
    with Session(model) as session:
        rows = TextReader(model, session.metadata).read(some).request
        wanted = session.run(rows)["last_hidden_state"]
    for actual, one in zip(table.column("embeddings").to_pylist(), wanted, strict=True):
        np.testing.assert_allclose(actual, one, rtol=1e-3, atol=1e-4)


def test_sparse_vectors_keep_what_is_not_zero() -> None:
    dense = np.array([[0, 2, 0, 0.5], [0, 0, 0, 0], [1, 0, 0, 70000]], np.float32)
    head = SparseHead("out", np.dtype(np.float16), 3)
    ones = RaggedBatch({}, np.ones(2, np.int32))
    head.add(np.array([2, 0]), {"out": dense[[2, 0]]}, ones)
    head.add(np.array([1]), {"out": dense[[1]]}, RaggedBatch({}, np.ones(1, np.int32)))
    assert head.finite().tolist() == [True, True, False]  # 70000 is beyond float16
    columns = head.columns(np.array([0, 1]))
    assert columns["indices"].to_pylist() == [[1, 3], []]
    assert columns["values"].to_pylist() == [[2, 0.5], []]
    assert columns["values"].type == pa.list_(pa.float16())


def test_a_sparse_encoder(tmp_path: Path) -> None:
    some = texts(20)
    model = write_model(tmp_path / "sparse.onnx", text=TextInfo(SPARSE, DIGEST, pooling=("splade",)).to_dict())
    (tmp_path / "in.txt").write_text("\n".join(some), encoding="utf-8")
    run_here(Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), model))
    table = parquet.read_table(tmp_path / "out")
    assert table.column_names == ["id", "indices", "values"]
    np.testing.assert_allclose(table.column("values").to_pylist(), expected_rows(some), rtol=1e-4, atol=1e-4)


def test_scores_of_pairs(tmp_path: Path, reranker: Path) -> None:
    first, second = texts(40, most=6), texts(40, seed=1, most=200)
    rows = [{"id": at, "query": one, "text": two} for at, (one, two) in enumerate(zip(first, second, strict=True))]
    write_lines(tmp_path / "in.jsonl", [*rows, {"id": 40, "query": "a"}])
    arguments = ["--input", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out"), "--engine", str(reranker)]
    assert main(["rerank", *arguments, "--id", "id", "--verify"]) == 0
    table = parquet.read_table(tmp_path / "out")
    assert table.schema.field("score").type == pa.float32()
    assert table.column("id").to_pylist() == list(range(40))
    wanted = expected_rows(list(zip(first, second, strict=True)), 1)[:, 0]
    np.testing.assert_allclose(table.column("score").to_numpy(), wanted, rtol=1e-4, atol=1e-4)
    report = json.loads((tmp_path / "out" / "_report.json").read_text())
    assert report["bad"] == {"null": 1}
    assert report["cut"] > 0


@pytest.mark.parametrize("problem", ["", "multi_label_classification"])
def test_labels_of_texts(problem: str, tmp_path: Path) -> None:
    names, some = ("no", "maybe", "yes"), [*texts(20), ""]
    info = TextInfo("text-classification", DIGEST, labels=names, problem=problem)
    model = write_model(tmp_path / "classes.onnx", "logits", 3, info.to_dict())
    write_lines(tmp_path / "in.jsonl", [*({"text": text} for text in some), {"text": None}])
    arguments = ["--input", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out"), "--engine", str(model)]
    assert main(["embed", *arguments, "--verify"]) == 0
    table = parquet.read_table(tmp_path / "out")
    logits = expected_rows(some, 3).astype(np.float64)
    shares = 1 / (1 + np.exp(-logits))
    if not problem:
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        shares = exponentials / exponentials.sum(1, keepdims=True)
    assert table.schema.field("scores").type == pa.list_(pa.float32(), 3)
    np.testing.assert_allclose(table.column("scores").to_pylist(), shares, atol=1e-4)
    assert table.column("label").to_pylist() == [names[at] for at in logits.argmax(1)]
    np.testing.assert_allclose(table.column("score").to_numpy(), shares.max(1), atol=1e-4)
    assert ("labels" in table.column_names) == bool(problem)
    if problem:
        wanted = [[names[at] for at in np.argsort(-row) if row[at] > 0] for row in logits]
        assert table.column("labels").to_pylist() == wanted


def test_labels_do_not_depend_on_the_type_of_scores() -> None:
    """As float16, 2000.4 and 2000.6 are one number, and 70,000 is none; probabilities of either are."""
    logits = np.array([[2000.4, 2000.6, 0], [70000, 0, 0], [np.inf, 0, 0], [np.nan, 0, 0]], np.float32)
    head = LabelHead("out", np.dtype(np.float16), TextInfo(CLASSES, labels=("no", "yes", "no")), 4)
    head.add(np.arange(4), {"out": logits}, RaggedBatch({}, np.ones(4, np.int32)))
    assert head.finite().tolist() == [True, True, False, False]
    columns = head.columns(np.array([0, 1]))
    assert columns["label"].to_pylist() == ["yes", "no"]
    assert columns["scores"].type == pa.list_(pa.float16(), 3)
    wanted = np.exp([-0.2, 0]) / np.exp([-0.2, 0]).sum()
    np.testing.assert_allclose(columns["scores"].to_pylist(), [[*wanted, 0], [1, 0, 0]], atol=1e-3)
    regression = LabelHead("out", np.dtype(np.float16), TextInfo(CLASSES, problem=REGRESSION), 2)
    regression.add(np.arange(2), {"out": logits[:2]}, RaggedBatch({}, np.ones(2, np.int32)))
    assert regression.finite().tolist() == [True, False]


def test_scores_of_classes(tmp_path: Path) -> None:
    model = write_model(tmp_path / "classes.onnx", "scores", 3, TextInfo("cross-encoder", DIGEST).to_dict())
    write_lines(tmp_path / "in.jsonl", [{"a": "a cat", "b": "my dog"}])
    run_here(Request([str(tmp_path / "in.jsonl")], str(tmp_path / "out"), model, ("a", "b")))
    (actual,) = parquet.read_table(tmp_path / "out").column("scores").to_pylist()
    np.testing.assert_allclose(actual, expected_rows([("a cat", "my dog")], 3)[0], rtol=1e-4, atol=1e-4)


def test_documents_lose_the_vectors_that_their_model_leaves_out(tmp_path: Path) -> None:
    model = tmp_path / "colbert.onnx"
    assert main(["optimize", str(write_late_model("colbert", tmp_path / "colbert")), "-o", str(model)]) == 0
    for role, some in (("query", QUERIES), ("document", DOCUMENTS)):
        source, output = tmp_path / f"{role}.jsonl", tmp_path / role
        write_lines(source, [{"text": text} for text in some])
        run_here(Request([str(source)], str(output), model, prompt=role))
        rows = parquet.read_table(output).column("embeddings").to_pylist()
        wanted = read_late_answers("colbert")
        for vectors, right in zip(rows, wanted.queries if role == "query" else wanted.documents, strict=True):
            np.testing.assert_allclose(vectors, right, atol=1e-5)


def test_pairs_are_scored_by_the_vectors_of_their_tokens(tmp_path: Path) -> None:
    model = tmp_path / "colbert.onnx"
    assert main(["optimize", str(write_late_model("colbert", tmp_path / "colbert")), "-o", str(model)]) == 0
    pairs = [(query, document) for query in QUERIES for document in DOCUMENTS]
    write_lines(tmp_path / "in.jsonl", [{"query": query, "text": document} for query, document in pairs])
    columns = ("query", "text")
    run_here(Request([str(tmp_path / "in.jsonl")], str(tmp_path / "out"), model, columns, shard_rows=7))
    answers = read_late_answers("colbert")
    wanted = [(query @ document.T).max(1).sum() for query in answers.queries for document in answers.documents]
    table = parquet.read_table(tmp_path / "out")
    assert table.column("id").to_pylist() == list(range(len(pairs)))
    np.testing.assert_allclose(table.column("score").to_pylist(), wanted, atol=1e-4)
