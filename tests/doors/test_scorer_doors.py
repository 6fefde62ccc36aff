# SPDX-License-Identifier: Apache-2.0
"""A reranker with a template gives the scores of transformers through every interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import padfree
import pytest
from padfree.builder import cli

from tests.support.scorers import PAIRS, read, write_scorer

from .test_text_doors import Door, Kind, Model, by_run, by_triton, write_lines

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Qwen3-Reranker, packed."""
    scratch = tmp_path_factory.mktemp("doors")
    folder, packed = write_scorer("qwen3", scratch / "Qwen3-Reranker-0.6B"), scratch / "packed.onnx"
    assert cli.main(["optimize", str(folder), "-o", str(packed)]) == 0
    return Model(Kind("template", pairs=True), packed, packed, folder / "tokenizer.json", folder)


def by_rerank(model: Model, texts: Any, _: Path) -> npt.NDArray[Any]:
    """The scores of /rerank, after checking that /predict gives the same for pairs."""
    pytest.importorskip("starlette")
    from tests.support.http_requests import post
    from tests.support.served_models import Server

    with Server(model.packed, "--processes", "1") as server:
        scores = []
        for query, document in texts:
            status, answer = post(server, "/rerank", query=query, texts=[document])
            assert status == 200, answer
            scores.append([answer[0]["score"]])
        status, answers = post(server, "/predict", inputs=[list(text) for text in texts])
        assert status == 200, answers
        np.testing.assert_allclose([answer[0]["score"] for answer in answers], np.ravel(scores), atol=TOLERANCE)
        status, answer = post(server, "/predict", inputs="a text by itself")
        assert status in (400, 413, 422), answer
        return np.array(scores)


def by_bulk(model: Model, texts: Any, scratch: Path) -> npt.NDArray[Any]:
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = [dict(zip(("query", "document"), text, strict=True)) for text in texts]
    source, output = write_lines(scratch / "in.jsonl", lines), scratch / "out"
    command = ["rerank", "--input", str(source), "-o", str(output), "--engine", str(model.packed)]
    assert cli.main([*command, "--tokenizers", "1"]) == 0
    (part,) = output.glob("part-*.parquet")
    return np.array(parquet.read_table(part).column("score").to_pylist())


def by_python(model: Model, texts: Any, _: Path) -> npt.NDArray[Any]:
    with padfree.Model(model.packed) as opened:
        return opened.scores(list(texts))[:, None]


@pytest.mark.parametrize(
    "door", [by_python, by_run, by_triton, pytest.param(by_bulk, marks=pytest.mark.slow),
             pytest.param(by_rerank, marks=pytest.mark.slow)]
)  # fmt: skip
def test_every_door_gives_the_scores_of_transformers(model: Model, door: Door, tmp_path: Path) -> None:
    found = np.reshape(door(model, PAIRS, tmp_path), -1)
    np.testing.assert_allclose(found, read("qwen3").scores, atol=TOLERANCE)
