# SPDX-License-Identifier: Apache-2.0
"""Folders of ColBERT and PyLate: ids, vectors and scores are PyLate's, and what cannot be read is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import padfree
import pytest
from padfree.builder import cli
from padfree.builder.errors import BuildError
from padfree.builder.folders.hub_files import settings_of
from padfree.builder.folders.source import opened
from padfree.contract.late_interaction import DOCUMENT, QUERY
from padfree.onnx_tools.rewrite import rewrite
from padfree.runtime import Session, SessionError, chunks
from padfree.runtime.answers import max_sim
from padfree.runtime.request import RaggedBatch
from padfree.runtime.texts import TextReader

from tests.support.late_models import (
    DOCUMENT_LENGTH,
    DOCUMENTS,
    MODELS,
    QUERIES,
    QUERY_LENGTH,
    WIDTH,
    LateAnswers,
    read,
    write_late_model,
)

TOLERANCE = 2e-6  # of vectors of length 1, in float32
LEAST_COSINE = 0.999  # fp16, with random weights
ATTENDING = "colbert_attends"

Packed = tuple[str, Path]


@pytest.fixture(scope="module", params=sorted(MODELS))
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """One of MODELS, and its rewritten file."""
    scratch = tmp_path_factory.mktemp("late")
    folder, output = write_late_model(request.param, scratch / request.param), scratch / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(output), "--strict"]) == 0
    return request.param, output


@pytest.fixture
def model(packed: Packed) -> Iterator[padfree.Model]:
    """The rewritten file, opened."""
    with padfree.Model(packed[1]) as model:
        yield model


def score_of(query: npt.NDArray[Any], document: npt.NDArray[Any]) -> float:
    return float((query.astype(np.float64) @ document.astype(np.float64).T).max(axis=1).sum())


def check_alike(actual: list[npt.NDArray[Any]], wanted: list[npt.NDArray[Any]]) -> None:
    assert [rows.shape for rows in actual] == [rows.shape for rows in wanted]
    for rows, right in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(rows, right, atol=TOLERANCE)


def test_vectors_are_those_of_pylate(packed: Packed, model: padfree.Model) -> None:
    wanted = read(packed[0])
    check_alike(model.encode_query(QUERIES), wanted.queries)
    check_alike(model.encode_document(DOCUMENTS), wanted.documents)
    check_alike([model.encode_query(QUERIES[0])], wanted.queries[:1])


def test_scores_are_sums_of_largest_products(packed: Packed, model: padfree.Model) -> None:
    wanted = read(packed[0])
    pairs = [(query, document) for query in QUERIES for document in DOCUMENTS]
    expected = [score_of(query, document) for query in wanted.queries for document in wanted.documents]
    np.testing.assert_allclose(model.scores(pairs), expected, atol=QUERY_LENGTH * TOLERANCE)
    ranks = model.rerank(QUERIES[0], DOCUMENTS, top=2)
    assert [item.index for item in ranks] == np.argsort(expected[: len(DOCUMENTS)])[::-1][:2].tolist()


def test_each_query_is_computed_once(model: padfree.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a call has more queries than are held at once; scores depend little on what runs beside them."""
    pairs = [(query, document) for document in DOCUMENTS for query in QUERIES]
    alone = [float(model.scores([pair])[0]) for pair in pairs]
    computed, run = [], Session.run_ragged

    def watch(session: Session, ragged: RaggedBatch, **options: Any) -> Any:
        computed.append(ragged.seq_lens.size)
        return run(session, ragged, **options)

    monkeypatch.setattr(Session, "run_ragged", watch)
    for name in ("CHUNK_TOKENS", "CPU_CHUNK_TOKENS"):
        monkeypatch.setattr(chunks, name, 64)
    for group in (max_sim.GROUP, 1):
        monkeypatch.setattr(max_sim, "GROUP", group)
        computed.clear()
        assert model.scores(pairs).tolist() == pytest.approx(alone, abs=1e-5)
        assert sum(computed) == len(pairs) + len(QUERIES)
        assert len(computed) > 1
    computed.clear()
    assert len(model.rerank(QUERIES[0], DOCUMENTS)) == len(DOCUMENTS)
    assert sum(computed) == len(DOCUMENTS) + 1


def test_ids_are_those_of_pylate(packed: Packed) -> None:
    name, path = packed
    wanted = read(name)
    with Session(path) as session:
        reader, ids = TextReader(path, session.metadata), session.metadata.ids_input()
    assert reader.info.late is not None
    expansion = reader.info.late.expansion
    queries = reader.read(QUERIES, prompt_name=QUERY).request["input_ids"]
    masks = reader.read(["[MASK]"], prompt_name=DOCUMENT).request["input_ids"][0][2]
    assert [[masks if token == expansion else token for token in row] for row in queries] == wanted.query_ids
    assert reader.read(DOCUMENTS).request["input_ids"] == wanted.document_ids
    assert reader.read(DOCUMENTS).cut == 1
    with pytest.raises(SessionError, match=f"text 3 has more than {QUERY_LENGTH} tokens"):
        reader.read(QUERIES, prompt_name=QUERY, cut=False)
    hides = expansion not in (None, masks)
    assert not hides or expansion == (ids.limit or 0) - 1  # a row of its own, which texts cannot name
    assert hides == ("attends" not in name and "plain" not in name)


def test_what_no_token_sees_changes_no_other(tmp_path: Path) -> None:
    """A longer query has more tokens that none sees: its own have the same vectors."""
    folder = write_late_model("colbert", tmp_path / "longer", {"query_maxlen": 2 * QUERY_LENGTH})
    with padfree.Model(folder, backend="onnxruntime") as model:
        longer = model.encode_query(QUERIES[1])
    assert len(longer) == 2 * QUERY_LENGTH
    np.testing.assert_allclose(longer[:QUERY_LENGTH], read("colbert").queries[1], atol=TOLERANCE)


def test_a_query_that_sees_its_masks_is_another() -> None:
    wanted: LateAnswers = read(ATTENDING)
    assert np.abs(wanted.queries[1] - read("colbert").queries[1]).max() > 100 * TOLERANCE


def test_answers_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = write_late_model("colbert", tmp_path / "model"), tmp_path / "out.jsonl"
    wanted = read("colbert")
    command = ["run", str(folder), "-o", str(out)]

    def answer(*options: str) -> dict[str, Any]:
        assert cli.main([*command, *options]) == 0
        (line,) = out.read_text("utf-8").splitlines()
        result: dict[str, Any] = json.loads(line)
        return result

    query = answer("--text", QUERIES[0], "--prompt", "query")["embeddings"]
    np.testing.assert_allclose(query, wanted.queries[0], atol=TOLERANCE)
    document = answer("--text", DOCUMENTS[0])["embeddings"]
    np.testing.assert_allclose(document, wanted.documents[0], atol=TOLERANCE)
    score = answer("--text", QUERIES[0], "--text-pair", DOCUMENTS[0])["score"]
    assert abs(score - score_of(wanted.queries[0], wanted.documents[0])) < QUERY_LENGTH * TOLERANCE
    shown = capsys.readouterr().out
    assert [line.partition(";")[0] for line in shown.splitlines() if "wrote" in line] == [
        "1 text (encode_query)",
        "1 text (encode_document)",
        "1 pair (scores)",
    ]


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        (["--text-pair", "a"], f"{DOCUMENT_LENGTH} tokens (queries: {QUERY_LENGTH}) that lost their ends: 1 of 2"),
        (["--prompt", "query"], f"{QUERY_LENGTH} tokens that lost their ends: 1 of 1"),
    ],
)
def test_cut_texts_are_counted_with_what_they_may_have(
    options: list[str], limits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = write_late_model("colbert", tmp_path / "model"), tmp_path / "out.jsonl"
    assert cli.main(["run", str(folder), "-o", str(out), "--text", QUERIES[3], *options]) == 0
    assert f"--text: texts of more than {limits}" in " ".join(capsys.readouterr().err.split())


def test_other_questions_say_what_the_model_is_for(tmp_path: Path) -> None:
    folder = write_late_model("colbert", tmp_path / "model")
    with padfree.Model(folder, backend="onnxruntime") as model:
        with pytest.raises(SessionError, match="it makes a vector for every token: call encode_document"):
            model.encode(QUERIES)
        with pytest.raises(SessionError, match="call encode_query, or encode_document"):
            model.tokens(QUERIES)
        with pytest.raises(SessionError, match="is a pair of texts, and the model reads queries and documents by"):
            model.encode_document([("a", "b")])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda model: model.rerank(None, ["a"]), r"pair 0 holds None \(NoneType\), allowed: two texts"),
        (lambda model: model.rerank("a", ["b", None]), r"text 1 is None \(NoneType\), allowed: a str"),
        (lambda model: model.rerank(["a"], ["b"]), r"pair 0 holds \['a'\] \(list\), allowed: two texts"),
        (lambda model: model.scores([("a", "b"), ("a", 1.5)]), r"pair 1 holds 1.5 \(float\), allowed: two texts"),
        (lambda model: model.encode(["a"], is_query=True), "have encode_query and encode_document"),
    ],
)
def test_what_is_no_text_is_named(ask: Callable[[padfree.Model], Any], message: str, tmp_path: Path) -> None:
    with padfree.Model(write_late_model("colbert", tmp_path / "model"), backend="onnxruntime") as model:
        with pytest.raises((SessionError, TypeError), match=message):
            ask(model)
        assert model.rerank("a", "rain") == model.rerank("a", ["rain"])  # one document, and not its letters


def test_a_pair_whose_rows_are_asked_for_says_where_scores_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_late_model("colbert", tmp_path / "model")
    pair = ["--text", "a", "--text-pair", "b"]
    assert cli.main(["run", str(folder), "-o", str(tmp_path / "out.npz"), *pair]) == 1
    assert "let padfree run write scores: -o scores.jsonl" in " ".join(capsys.readouterr().err.split())


def test_pooling_and_rows_can_be_asked_for(tmp_path: Path) -> None:
    folder = write_late_model("colbert", tmp_path / "model")
    with padfree.Model(folder, backend="onnxruntime", pooling="mean") as model:
        assert model.encode("rain").shape == (16,)
        assert model.info.late is None
        assert not model.info.prompts
    with padfree.Model(folder, backend="onnxruntime", pooling="none") as model:
        rows = model.tokens("rain").vectors
        assert rows is not None
        assert rows.shape == (3, 16)


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("colbert", {"query_token_id": "[Q]"}, r"names the marker '\[Q\]', which the tokenizer has no token for"),
        ("colbert", {"similarity": "l2"}, "'similarity' is 'l2', allowed: cosine"),
        ("colbert", {"interaction": "flipr"}, "'interaction' is 'flipr', allowed: colbert"),
        ("colbert", {"doc_maxlen": None}, "lacks query_maxlen and doc_maxlen"),
        ("colbert", {"doc_maxlen": 64}, "texts have up to 64 tokens, the model 40 positions"),
        ("modernbert", {"query_length": 12}, "expanded to 12 tokens, of which the last may see none through a window"),
        (
            "bert",
            {"prompts": {"query": "find: "}, "default_prompt_name": "query"},
            "'default_prompt_name' is 'query', allowed: none",
        ),
        ("modernbert", {"query_length": 2}, "queries have 2 tokens at most, allowed: 4 or more"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_late_model(name, tmp_path / "model", entries)
    with pytest.raises(BuildError, match=message), opened(folder):
        pass


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    for name, message in (
        ("artifact.metadata", "lacks query_maxlen and doc_maxlen"),
        ("tokenizer.json", "no tokenizer.json to tell the ids of markers"),
    ):
        folder = write_late_model("colbert", tmp_path / name)
        (folder / name).unlink()
        with pytest.raises(BuildError, match=message), opened(folder):
            pass


@pytest.mark.parametrize("name", ["colbert", "modernbert"])
def test_half_precision_leaves_unseen_tokens_unseen(name: str, tmp_path: Path) -> None:
    folder, file = write_late_model(name, tmp_path / "model", scale=8), tmp_path / "half.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(file), "--precision", "fp16"]) == 0
    with padfree.Model(file) as half, padfree.Model(folder, backend="onnxruntime") as model:
        pairs = zip(half.encode_query(QUERIES), model.encode_query(QUERIES), strict=True)
        cosines = np.concatenate([(rows * others).sum(axis=1) for rows, others in pairs])
    assert cosines.min() > LEAST_COSINE


def test_the_hub_gives_what_says_how_texts_are_read() -> None:
    names = ["README.md", "artifact.metadata", "colbert.py", "config.json", "model.safetensors"]
    assert settings_of(names) == ["artifact.metadata", "config.json"]


def test_nothing_of_it_is_padded(tmp_path: Path) -> None:
    with opened(write_late_model("modernbert", tmp_path / "model")) as source:
        result = rewrite(source.path, verify=False)
    assert result.report.complete
    (output,) = result.model.graph.output
    dims = [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
    assert (output.name, dims) == ("token_embeddings", ["T", WIDTH])
