# SPDX-License-Identifier: Apache-2.0
"""Sequences that begin with the same tokens: which share them, how runs are cut, and what comes back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import cli
from padfree.contract.metadata import parse_metadata
from padfree.runtime import Session, SessionError
from padfree.runtime.batching import Batcher, FairShare
from padfree.runtime.batching.groups import beginning_of, parts_of
from padfree.runtime.budget import Budget
from padfree.runtime.cpu_runs import CpuRuns
from padfree.runtime.gpu.buckets import Buckets, Sizes
from padfree.runtime.pool import DevicePool
from padfree.runtime.prefixes import (
    LEAST_PREFIX,
    LEAST_SAVED,
    computed_lengths,
    read_prefix,
    shared_beginning,
    shared_runs,
)
from padfree.runtime.request import RaggedBatch

from tests.support.scorers import read, write_scorer

IDS = {"name": "input_ids", "role": "tokens", "limit": 1000, "dtype": "int32"}
LENS = {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"}
PREFIX = {"name": "prefix", "role": "prefix", "limit": None, "dtype": "int32"}
RAW = {
    "format": 1,
    "interface": "packed",
    "precision": "fp32",
    "inputs": [IDS, LENS, PREFIX],
    "outputs": [{"name": "scores", "layout": "per_sequence", "dtype": "float32", "dims": ["B", 1]}],
    "max_positions": 512,
    "plugins": {},
}
METADATA = parse_metadata(RAW, "test")
PLAIN = parse_metadata({**RAW, "inputs": [IDS, LENS]}, "test")
TOLERANCE = 1e-5
"""How far float32 probabilities may differ between shared prefixes and whole sequences."""


def batch(sequences: Sequence[Sequence[int]]) -> RaggedBatch:
    ids = np.array(list(itertools.chain(*sequences)), np.int32)
    return RaggedBatch({"input_ids": ids}, np.array(list(map(len, sequences)), np.int32))


def random_sequences(seed: int) -> list[list[int]]:
    """Sequences that begin with parts of three stems of few different ids; some are equal, empty or single tokens."""
    rng = np.random.default_rng(seed)
    stems = [rng.integers(0, 3, rng.integers(20, 90)).tolist() for _ in range(3)]
    sequences: list[list[int]] = [[], [1]]
    for _ in range(rng.integers(1, 30)):
        stem = stems[rng.integers(3)]
        sequences.append(stem[: rng.integers(0, len(stem) + 1)] + rng.integers(0, 2, rng.integers(0, 20)).tolist())
    return [*sequences, sequences[-1], stems[0], stems[0]]


def unfold(run: RaggedBatch) -> list[list[int]]:
    """The whole sequences that a run stands for."""
    rows = [row.tolist() for row in run.rows()["input_ids"]]
    prefix = [-1] * len(rows) if run.prefix is None else run.prefix.tolist()
    return [(rows[parent] if parent >= 0 else []) + row for row, parent in zip(rows, prefix, strict=True)]


@pytest.mark.parametrize("budget", [Budget(), Budget(200, 7), Budget(120, None), Budget(None, 3), Budget(95, 2)])
@pytest.mark.parametrize("seed", range(12))
def test_runs_stand_for_every_sequence_once(seed: int, budget: Budget) -> None:
    sequences = random_sequences(seed)
    runs = shared_runs(batch(sequences), METADATA, budget)
    seen = []
    for run in runs:
        lens = run.batch.seq_lens.tolist()
        own = len(run.callers)
        assert budget.takes(len(lens), sum(lens), max(lens)) or own == 1
        assert [sequences[at] for at in run.callers] == unfold(run.batch)[:own]
        assert run.tokens_saved == sum(len(sequences[at]) for at in run.callers) - sum(lens)
        seen += run.callers
        if run.batch.prefix is not None:
            parents = run.batch.prefix.tolist()
            assert all(parent == -1 or (parent >= own and parents[parent] == -1) for parent in parents)
            assert all(lens[at] > 0 and lens[parents[at]] >= LEAST_PREFIX for at in range(own) if parents[at] >= 0)
            assert min(np.bincount([parent for parent in parents if parent >= 0])[own:]) > 1
    assert sorted(seen) == (list(range(len(sequences))) if runs else [])


def saved_by_cuts(sequences: Sequence[Sequence[int]]) -> int:
    """The most of all ways to cut the sequences, in the order of their ids, into families."""
    order = sorted((sequence[:-1] for sequence in sequences), key=lambda row: np.array(row, np.int32).tobytes())
    common = [
        next((at for at, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair)))
        for pair in itertools.pairwise(order)
    ]
    best = [0]
    for end in range(1, len(order) + 1):
        best.append(best[-1])
        for start in range(end - 1):
            shared = min(common[start : end - 1])
            if shared >= LEAST_PREFIX:
                best[end] = max(best[end], best[start] + (end - start - 1) * shared)
    return best[-1]


def test_nearly_as_much_is_saved_as_can_be() -> None:
    saved, most = 0, 0
    for seed in range(60):
        sequences = random_sequences(seed)
        own = sum(run.tokens_saved for run in shared_runs(batch(sequences), METADATA, Budget(), Costs(0)))
        assert own >= 0.8 * saved_by_cuts(sequences)
        saved, most = saved + own, most + saved_by_cuts(sequences)
    assert saved >= 0.97 * most > 0


def test_the_longest_common_prefix_of_all_is_found() -> None:
    query = list(range(100))
    sequences = [[*query, 500 + at, *range(at)] for at in range(40)]
    (run,) = shared_runs(batch(sequences), METADATA, Budget())
    assert run.tokens_saved == 39 * 100
    assert sorted(run.batch.seq_lens.tolist()) == [*(1 + at for at in range(40)), 100]


def test_two_queries_are_two_prefixes_and_ids_alone_decide() -> None:
    instruction = list(range(50))
    queries = [[*instruction, *([q] * 40)] for q in (600, 700)]
    sequences = [[*queries[at % 2], 800 + at, 900] for at in range(20)]
    (run,) = shared_runs(batch(sequences), METADATA, Budget())
    assert sorted(run.batch.seq_lens.tolist()[-2:]) == [90, 90]
    assert run.tokens_saved == 2 * 9 * 90


def test_what_saves_too_little_is_left_alone() -> None:
    for common, own, count in ((LEAST_PREFIX - 1, 5, 50), (LEAST_SAVED - 1, 5, 2), (70, 3000, 2)):
        sequences = [[*range(common), 500 + at, *range(own)] for at in range(count)]
        assert shared_runs(batch(sequences), METADATA, Budget()) == []
    sequences = [[*range(200), 500 + at] for at in range(10)]
    assert shared_runs(batch(sequences), PLAIN, Budget()) == []
    assert shared_runs(batch(sequences), METADATA, Budget(None, 1)) == []
    assert shared_runs(batch(sequences[:1]), METADATA, Budget()) == []


class Costs:
    """A table in which a sequence costs as much as so many tokens."""

    def __init__(self, of_a_sequence: float) -> None:
        self._of_a_sequence = of_a_sequence

    def mixed_seconds(self, sequences: Any, tokens: Any, squares: Any) -> Any:  # noqa: ARG002
        return np.asarray(sequences) * self._of_a_sequence + np.asarray(tokens)


def test_a_cost_table_decides() -> None:
    sequences = [[*range(20), 500 + at] for at in range(3)]
    assert len(shared_runs(batch(sequences), METADATA, Budget(), Costs(30))) == 1
    assert shared_runs(batch(sequences), METADATA, Budget(), Costs(50)) == []


@pytest.mark.parametrize(
    ("sequences", "length"),
    [
        ([[*range(100), 500 + at] for at in range(40)], 100),
        ([[*range(100)]] * 3, 99),
        ([[*range(100)], [*range(60)], [*range(80)]], 59),
        ([[*range(16)], [*range(100)]], 0),
        ([[*range(LEAST_PREFIX - 1), 7, *range(50)], [*range(100)]], 0),
        ([[*range(40), *range(900)], [*range(40), *range(1, 900)]], 0),
        ([[*range(100)]], 0),
        ([[], [*range(100)]], 0),
        ([], 0),
    ],
    ids=["query", "equal", "lengths", "short", "early", "too little", "one", "empty", "none"],
)
def test_what_all_sequences_begin_with(sequences: list[list[int]], length: int) -> None:
    assert shared_beginning(batch(sequences), METADATA) == length
    assert shared_beginning(batch(sequences), PLAIN) == 0


@pytest.mark.parametrize("seed", range(6))
def test_computed_lengths_are_those_of_one_run(seed: int) -> None:
    sequences = random_sequences(seed)
    runs = shared_runs(batch(sequences), METADATA, Budget())
    computed = computed_lengths(batch(sequences), METADATA, Budget())
    expected = sum(int(run.batch.seq_lens.sum()) for run in runs) or sum(map(len, sequences))
    assert int(computed.sum()) == expected
    assert (computed <= batch(sequences).seq_lens).all()


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ([-1, 0], r"'prefix' has 2 numbers, there are 3 sequences; pass one for each"),
        ([-1, 3, -1], r"'prefix' is 3 for sequence 1, allowed: -1, or the number of another of the 3"),
        ([0, -1, -1], r"'prefix' is 0 for sequence 0, allowed"),
        ([-1, 0, 1], r"sequence 2 continues sequence 1, which continues sequence 0; allowed is one step"),
        ([-1, -1, 0], r"sequence 2 has 400 tokens after a prefix of 200, together 600, the model or .* takes 512; "),
    ],
)
def test_bad_prefixes_are_refused(prefix: list[int], message: str) -> None:
    with pytest.raises(SessionError, match=message):
        read_prefix(prefix, np.array([200, 100, 400], np.int32), METADATA)
    with pytest.raises(SessionError, match="takes no prefixes; make it with --shared-prefixes"):
        read_prefix(prefix, np.array([200, 100, 400], np.int32), PLAIN)


def test_graphs_are_for_batches_with_prefixes_or_without() -> None:
    profile = {"min_tokens": 1, "opt_tokens": 100, "max_tokens": 1000, "max_batch": 20, "max_seq_len": 512}
    engine = {
        "tensorrt": "10.6.0", "gpu_name": "H200", "compute_capability": "9.0", "profile": profile,
        "plan_bytes": 1, "plan_sha256": "0" * 64, "plugin_layers": {},
    }  # fmt: skip
    buckets = Buckets(parse_metadata({**RAW, "engine": engine}, "test"))
    shapes = {"input_ids": (70,), "seq_lens": (3,), "prefix": (1,)}
    assert buckets.round_up(buckets.sizes(shapes)) == Sizes(80, 4, 0, 1)
    assert buckets.round_up(buckets.sizes({**shapes, "prefix": (3,)})) == Sizes(80, 4, 0, 4)
    assert buckets.input_shapes(Sizes(70, 4, 0, 4)) == {"input_ids": (70,), "seq_lens": (4,), "prefix": (4,)}


def test_parts_of_a_run_on_a_cpu_have_the_prefixes_that_they_need() -> None:
    lens = np.array([1500, 1, 1, 1, 3, 700, 9000], np.int32)
    prefix = np.array([-1, 4, 4, 5, -1, -1, -1], np.int32)
    ids = np.repeat(np.arange(7, dtype=np.int32), lens)
    seen = []

    def run_once(feeds: Any) -> dict[str, Any]:
        ends = np.cumsum(feeds["seq_lens"])
        own = feeds["input_ids"][ends - 1]
        parents = [-1 if at < 0 else own[at] for at in feeds["prefix"]]
        seen.append(len(own))
        return {"scores": np.stack([own, parents], axis=1)[:, :1] * 10.0 + np.array(parents)[:, None]}

    results = CpuRuns(METADATA).run({"input_ids": ids, "seq_lens": lens, "prefix": prefix}, run_once)
    assert results["scores"][:, 0].tolist() == [10.0 * at + prefix[at] for at in range(7)]
    assert len(seen) > 1


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch = tmp_path_factory.mktemp("prefixes")
    folder = write_scorer("qwen3", scratch / "Qwen3-Reranker-0.6B")
    options = ["--shared-prefixes", *read("qwen3").options]
    assert cli.main(["optimize", str(folder), "-o", str(scratch / "packed.onnx"), *options]) == 0
    return scratch / "packed.onnx"


def test_a_session_shares_and_answers_as_without(packed: Path) -> None:
    rng = np.random.default_rng(0)
    query = rng.integers(0, 400, 120).tolist()
    sequences = [query + rng.integers(0, 400, rng.integers(1, 60)).tolist() for _ in range(25)]
    sequences += [rng.integers(0, 400, 30).tolist(), [], query]
    with Session(packed) as session:
        alone = [session.run([ids])["scores"][0] for ids in sequences]
        assert session.tokens_saved == 0
        together = session.run(sequences)["scores"]
        assert session.tokens_saved == 25 * 119
        unshared = session.backend.run(session.feeds(batch(sequences)))["scores"]
    np.testing.assert_allclose(together, alone, atol=TOLERANCE, rtol=TOLERANCE)
    np.testing.assert_allclose(together, unshared, atol=TOLERANCE, rtol=TOLERANCE)


def test_answers_are_those_of_transformers(packed: Path) -> None:
    """Every pair of the fixture several times in one batch: its template and query are shared."""
    ids, scores = read("qwen3").ids, read("qwen3").scores
    with Session(packed) as session:
        found = session.run([row for row in ids for _ in range(3)])["scores"]
        assert session.tokens_saved > 0
    np.testing.assert_allclose(np.ravel(found), np.repeat(scores, 3), atol=TOLERANCE, rtol=TOLERANCE)


def test_packed_runs_take_prefixes_of_the_caller(packed: Path) -> None:
    rng = np.random.default_rng(1)
    query, rest = rng.integers(0, 400, 50), [rng.integers(0, 400, count) for count in (7, 1, 30)]
    with Session(packed) as session:
        expected = session.run([[*query, *part] for part in rest])["scores"]
        tokens = np.concatenate([rest[0], query, *rest[1:]])
        found = session.run_packed(tokens, [7, 50, 1, 30], prefix=[1, -1, 1, 1])["scores"]
    np.testing.assert_allclose(found[[0, 2, 3]], expected, atol=TOLERANCE, rtol=TOLERANCE)


def documents_of_a_query(count: int) -> list[list[int]]:
    """Sequences of 120 equal tokens, then some of their own."""
    rng = np.random.default_rng(2)
    query = rng.integers(0, 400, 120).tolist()
    return [query + rng.integers(0, 400, rng.integers(1, 60)).tolist() for _ in range(count)]


@pytest.mark.parametrize("devices", [0, 1, 2])
def test_a_request_of_a_batcher_is_one_run_where_its_computed_tokens_fit(packed: Path, devices: int) -> None:
    sequences = documents_of_a_query(30)
    own = sum(map(len, sequences)) - 29 * 120
    with Session(packed) as session:
        alone = [session.run([ids])["scores"][0] for ids in sequences]
    for budget, runs in ((Budget(own, 31), 1), (Budget(own - 1, 31), 2), (Budget(own, 30), 2)):
        sessions = [Session(packed) for _ in range(devices or 1)]
        model: Any = DevicePool({f"{at}": item for at, item in enumerate(sessions)}) if devices else sessions[0]
        with model, Batcher(model, FairShare(budget), runs=1) as batcher:
            found = batcher.submit_group(sequences, part=Budget(700, 8)).result(60.0)["scores"]
            assert batcher.stats.runs == runs
            assert batcher.stats.tokens == own + (runs - 1) * 120
            assert model.tokens_saved >= (30 - max(2, devices)) * 120 - 120 * runs
        np.testing.assert_allclose(found, alone, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(
    "part", [Budget(700, 9), Budget(700), Budget(None, 9), Budget(121, 2), Budget(120, 9), Budget(700, 1)]
)
def test_parts_of_a_request_count_once_what_they_begin_with(part: Budget) -> None:
    ragged = batch(documents_of_a_query(30))
    beginning = beginning_of(ragged, METADATA)
    assert beginning is not None
    assert beginning.length == 120
    parts = parts_of(ragged, part, beginning)
    ids = [one.tokens["input_ids"] for one in parts]
    np.testing.assert_array_equal(np.concatenate(ids), ragged.tokens["input_ids"])
    shared = 0 if part in (Budget(120, 9), Budget(700, 1)) else 120  # no room for a sequence beside what it begins with

    def fits(lengths: list[int]) -> bool:
        return part.takes(len(lengths) + bool(shared), sum(lengths) - (len(lengths) - 1) * shared, 0)

    lengths = [one.seq_lens.tolist() for one in parts]
    assert all(fits(one) or len(one) == 1 for one in lengths)
    assert not any(fits([*one, after[0]]) for one, after in itertools.pairwise(lengths)), "as many as one takes"
