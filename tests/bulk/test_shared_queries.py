# SPDX-License-Identifier: Apache-2.0
"""`padfree rerank` by vectors of tokens: a shard computes each query once, and scores are those of each pair alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import padfree
import pytest
from padfree.builder.cli import main
from padfree.bulk import LocalWorkers, Request, Running, WorkerSpec, embed
from padfree.bulk.heads import MaxSimHead
from padfree.bulk.queries import share_queries
from padfree.bulk.workers.worker import Worker
from padfree.contract.late_interaction import LateInteraction
from padfree.runtime import Session
from padfree.runtime.request import RaggedBatch
from pyarrow import parquet

from tests.support.bulk_jobs import run_here, texts, write_lines
from tests.support.late_models import QUERIES, QUERY_LENGTH, write_late_model

PAIRS = [(QUERIES[at * at % 3], document) for at, document in enumerate(texts(40, most=12))]
COLUMNS = ("query", "text")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed ColBERT."""
    scratch = tmp_path_factory.mktemp("late")
    folder, file = write_late_model("colbert", scratch / "model", scale=4), scratch / "colbert.onnx"
    assert main(["optimize", str(folder), "-o", str(file)]) == 0
    return file


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    return write_lines(path, [{"query": query, "text": document} for query, document in pairs])


def spec_of(request: Request) -> WorkerSpec:
    """The specification that a job's workers would get; no shard is done."""
    results: list[WorkerSpec] = []

    def refuse(spec: WorkerSpec) -> LocalWorkers:
        results.append(spec)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        embed(request, Running(), refuse)
    return results[0]


def test_a_shard_computes_each_query_once(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, computed, told = write_pairs(tmp_path / "in.jsonl", PAIRS), list[RaggedBatch](), list[tuple[int, int]]()
    run = Session.run_fitting

    def watch(session: Session, ragged: RaggedBatch, **options: Any) -> Any:
        computed.append(ragged)
        return run(session, ragged, **options)

    monkeypatch.setattr(Session, "run_fitting", watch)
    request = Request([str(source)], str(tmp_path / "out"), model, COLUMNS, shard_rows=25)
    worker = Worker(spec_of(request), lambda _shard, rows, tokens: told.append((rows, tokens)))
    done = [worker.submit(shard).result() for shard in (0, 1)]
    worker.close()
    queries = [len({query for query, _ in PAIRS[:25]}), len({query for query, _ in PAIRS[25:]})]
    assert sum(batch.seq_lens.size for batch in computed) == len(PAIRS) + sum(queries)
    assert sum(rows for rows, _ in told) == len(PAIRS)
    saved = (len(PAIRS) - sum(queries)) * QUERY_LENGTH
    assert done[-1].totals.tokens_saved == saved
    assert sum(tokens for _, tokens in told) == sum(item.part.tokens for item in done) - saved
    table = parquet.read_table(sorted((tmp_path / "out").glob("*.parquet")))
    with padfree.Model(model) as alone:
        expected = [float(alone.scores([pair])[0]) for pair in PAIRS]
        assert table["score"].to_pylist() == pytest.approx(expected, abs=1e-5)  # products of other sizes


def test_a_pair_is_cut_once(tmp_path: Path, model: Path) -> None:
    source = write_pairs(tmp_path / "in.jsonl", [(QUERIES[3], "rain " * 60), (QUERIES[3], "rain"), ("rain", "rain")])
    report = run_here(Request([str(source)], str(tmp_path / "out"), model, COLUMNS)).report
    assert report.cut == 2


def test_the_output_of_vectors_may_be_named(tmp_path: Path, model: Path) -> None:
    source, name = write_pairs(tmp_path / "in.jsonl", PAIRS[:3]), "token_embeddings"
    for columns, column in ((COLUMNS, "score"), (("text",), "embeddings")):
        tables = []
        for head in (None, name):
            output = tmp_path / f"{column}-{head}"
            run_here(Request([str(source)], str(output), model, columns, head=head))
            tables.append(parquet.read_table(output))
        assert tables[0].column_names == ["id", column]
        assert tables[0].equals(tables[1])


def test_sequences_of_pairs() -> None:
    ids = [[1, 2], [7], [1], [2, 7], [1, 2], [7], [1], [2, 1]]
    pairs = RaggedBatch({"ids": np.concatenate(ids).astype(np.int32)}, np.array([len(row) for row in ids], np.int32))
    sequences, of_rows = share_queries(pairs)
    assert [row.tolist() for row in sequences.rows()["ids"]] == [[1, 2], [7], [1], [2, 7], [7], [2, 1]]
    assert of_rows.tolist() == [[0, 1], [2, 3], [0, 4], [2, 5]]
    different = pairs.take([0, 1, 2, 3])
    assert share_queries(different)[0] is different
    empty, none = share_queries(pairs.take(range(0)))
    assert empty.seq_lens.size == 0
    assert none.shape == (0, 2)


def test_all_pairs_of_a_query_without_numbers_are_bad(model: Path) -> None:
    with Session(model) as session:
        metadata = session.metadata
    name, pairs = metadata.outputs[0].name, np.array([[0, 1], [2, 3], [0, 4]])
    seq_lens = np.ones(5, np.int32)
    head = MaxSimHead(name, np.dtype(np.float32), metadata, seq_lens, LateInteraction(9, 9), pairs)
    vectors = np.ones((5, 2), np.float32)
    vectors[0] = np.nan
    ids = {metadata.ids_input().name: np.arange(5, dtype=np.int32)}
    head.add(np.arange(5), {name: vectors}, RaggedBatch(ids, seq_lens))
    assert head.finite().tolist() == [False, True, False]
    assert head.columns(np.array([1]))["score"].to_pylist() == [2.0]
