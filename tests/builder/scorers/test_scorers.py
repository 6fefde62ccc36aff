# SPDX-License-Identifier: Apache-2.0
"""Generative models as rerankers: ids and scores are those of transformers, used as the model cards say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import padfree
import pytest
from padfree.builder import cli
from padfree.runtime import Session, SessionError
from padfree.runtime.texts import TextReader

from tests.support.scorers import FOLDER, LIMIT, PAIRS, TEXT, read, write_scorer

NAMES = sorted(path.name for path in FOLDER.iterdir())
TOLERANCE = 1e-5
FOLDERS = {"qwen3": "Qwen3-Reranker-0.6B", "qwen3_untied": "qwen3-reranker-4b", "gemma": "bge-reranker-v2-gemma"}
"""Folder names of known models: their cards give the template."""


@pytest.fixture(scope="module", params=NAMES)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A fixture's name, and its rewritten file."""
    scratch = tmp_path_factory.mktemp("scorer")
    folder = write_scorer(request.param, scratch / FOLDERS.get(request.param, request.param))
    output = scratch / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(output), *read(request.param).options]) == 0
    return request.param, output


def test_probabilities_are_those_of_transformers(packed: tuple[str, Path]) -> None:
    name, path = packed
    with padfree.Model(path) as model:
        found = model.scores(PAIRS)
    np.testing.assert_allclose(found, read(name).scores, atol=TOLERANCE, rtol=TOLERANCE)


def test_ids_are_those_of_the_card(packed: tuple[str, Path]) -> None:
    name, path = packed
    with Session(path) as session:
        reader = TextReader(path, session.metadata)
    assert reader.read(PAIRS).request["input_ids"] == read(name).ids


def test_documents_are_cut_and_nothing_of_the_template(packed: tuple[str, Path]) -> None:
    name, path = packed
    wanted = read(name)
    with Session(path) as session:
        info = session.metadata.text
        assert info is not None
        reader = TextReader(path, session.metadata)
    reader._encoder.cut_to(LIMIT)
    tokens = reader.read(PAIRS)
    assert tokens.cut == sum(len(ids) > LIMIT for ids in wanted.ids)
    if wanted.cut:
        assert tokens.request["input_ids"] == wanted.cut
    for whole, ids in zip(wanted.ids, tokens.request["input_ids"], strict=True):
        assert len(ids) == min(len(whole), LIMIT)
        assert ids[-3:] == whole[-3:]


def test_the_output_is_one_score_per_pair_and_no_row_of_words(packed: tuple[str, Path]) -> None:
    _, path = packed
    with Session(path) as session:
        assert [(item.name, item.layout, item.shape) for item in session.metadata.outputs] == [
            ("scores", "per_sequence", (None, 1))
        ]


def test_documents_by_their_scores(packed: tuple[str, Path]) -> None:
    name, path = packed
    query, documents = PAIRS[0][0], [document for _, document in PAIRS]
    with padfree.Model(path) as model:
        ranked = model.rerank(query, documents)
        alone = [float(model.scores([(query, document)])[0]) for document in documents]
    assert [item.index for item in ranked] == sorted(range(len(documents)), key=lambda at: -alone[at])
    assert ranked[0].score == pytest.approx(max(alone), abs=TOLERANCE)
    assert name in NAMES


def test_a_text_by_itself_is_refused(packed: tuple[str, Path]) -> None:
    with padfree.Model(packed[1]) as model, pytest.raises(SessionError, match="pairs of texts"):
        model.scores(["a text"])


def test_a_query_that_leaves_no_room_is_cut_after_the_document(packed: tuple[str, Path]) -> None:
    name, path = packed
    with Session(path) as session:
        reader = TextReader(path, session.metadata)
    reader._encoder.cut_to(LIMIT)
    tokens = reader.read([("query " * 400, "document")])
    ids = tokens.request["input_ids"][0]
    assert len(ids) == LIMIT
    assert ids[-3:] == read(name).ids[0][-3:]


def test_python_takes_a_folder_and_what_it_is_asked(tmp_path: Path) -> None:
    folder = write_scorer("llama", tmp_path / "llama")
    with padfree.Model(folder, scores=("Yes", "No"), template=TEXT) as model:
        found = model.scores(PAIRS)
    np.testing.assert_allclose(found, read("llama").scores, atol=TOLERANCE)
