# SPDX-License-Identifier: Apache-2.0
"""`padfree serve` with a reranker that takes shared prefixes: scores, tokens saved, and its speed without them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import padfree
from padfree.builder.cli import main
from padfree.runtime import Session
from padfree.runtime.prefixes import shared_runs
from padfree.runtime.request import RaggedBatch
from padfree.runtime.text.tasks import Choices, describe
from padfree.serving import speed

from tests.support.http_requests import get, post
from tests.support.scorers import read, write_scorer
from tests.support.served_models import Server

TOLERANCE = 1e-5
QUERY = "which of these numbers is " + "very " * 30 + "large"


def write_reranker(folder: Path) -> Path:
    """A small decoder that scores pairs."""
    model, file = write_scorer("qwen3", folder / "Qwen3-Reranker-0.6B"), folder / "packed.onnx"
    assert main(["optimize", str(model), "-o", str(file), "--shared-prefixes", *read("qwen3").options]) == 0
    return file


def counter(page: str, name: str) -> int:
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found
    return int(float(found[1]))


def tokens_before(file: Path, texts: list[str]) -> int:
    """How many tokens come before all of the documents."""
    with Session(file) as session:
        encoder = describe(file, session.metadata, Choices(tags=True)).encoder()
    encoded = encoder.encode([(QUERY, text) for text in texts])
    shortest = int(encoded.seq_lens.min())
    rows = np.stack([row[:shortest] for row in np.split(encoded.ids, np.cumsum(encoded.seq_lens)[:-1])])
    length = int((rows == rows[0]).all(axis=0).cumprod().sum())
    assert length > len(QUERY.split())
    return length


def test_documents_of_a_query_share_it(tmp_path: Path) -> None:
    file = write_reranker(tmp_path)
    texts = [f"document {at} " + "of words " * (at % 5) for at in range(40)]
    with Server(file, "--processes", "1") as server:
        before = get(server, "/metrics")[1]
        status, ranks = post(server, "/rerank", query=QUERY, texts=texts)
        after = get(server, "/metrics")[1]
    assert status == 200

    def growth_of(name: str) -> int:
        return counter(after, name) - counter(before, name)

    saved, computed = growth_of("padfree_tokens_saved_total"), growth_of("padfree_tokens_total")
    assert saved + computed == growth_of("te_batch_next_tokens_sum")
    # Each run computes the query; how many there are depends on how fast the machine is at the moment.
    runs = growth_of("te_batch_next_size_count")
    assert saved >= (len(texts) - runs) * tokens_before(file, texts)
    assert computed > 0
    with padfree.Model(file) as model:
        alone = [float(model.scores([(QUERY, text)])[0]) for text in texts]
    found = {rank["index"]: rank["score"] for rank in ranks}
    np.testing.assert_allclose([found[at] for at in range(40)], alone, atol=TOLERANCE, rtol=TOLERANCE)


def test_speed_is_that_of_texts_that_share_nothing(tmp_path: Path) -> None:
    file = write_reranker(tmp_path)
    with Session(file) as session:
        seen: list[RaggedBatch] = []

        class Recorder:
            metadata, budget = session.metadata, session.budget

            def run_ragged(self, ragged: RaggedBatch) -> dict[str, list[object]]:
                seen.append(ragged)
                return {}

        speed.measure(Recorder(), describe(file, session.metadata, Choices(tags=True)), 1)
        assert max(ragged.seq_lens.size for ragged in seen) > 8
        assert not any(shared_runs(ragged, session.metadata, session.budget) for ragged in seen)
