# SPDX-License-Identifier: Apache-2.0
"""Engines end to end on a GPU: built from the exported fixture, compared with the original in onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder import BuildError, build_engine
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session, SessionError
from padfree.runtime.request import read_request

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

Array = npt.NDArray[Any]

EXPORTED = DEMO_DATA / "bert_tiny.onnx"
VOCABULARY = 930
MAX_BATCH = 8
MAX_SEQ_LEN = 128
# Differences from onnxruntime in fp32, for outputs of magnitude 1: fp32 adds sums in another order, fp16 rounds to 11
# bits in every layer, bf16 to 8.
TOLERANCES = {"fp32": 1e-3, "fp16": 4e-2, "bf16": 3e-1}
LENGTHS = [1, 128, 7, 64, 65, 33, 2, 100]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """A plan for every interface and precision."""
    folder = tmp_path_factory.mktemp("plans")
    built = {}
    for interface in ("packed", "padded"):
        for precision in TOLERANCES:
            plan = folder / f"{interface}-{precision}.plan"
            build_engine(
                EXPORTED,
                plan,
                interface=interface,
                precision=precision,
                max_batch=MAX_BATCH,
                max_seq_len=MAX_SEQ_LEN,
                timing_cache=folder / "timing.cache",
            )
            built[interface, precision] = plan
    return built


@pytest.fixture
def packed(plans: dict[tuple[str, str], Path]) -> Iterator[Session]:
    with Session(plans["packed", "fp16"]) as session:
        yield session


@pytest.fixture
def padded(plans: dict[tuple[str, str], Path]) -> Iterator[Session]:
    with Session(plans["padded", "fp16"]) as session:
        yield session


def request_of(lengths: list[int], seed: int = 0) -> dict[str, list[Array]]:
    rng = np.random.default_rng(seed)
    return {
        "input_ids": [rng.integers(0, VOCABULARY, length) for length in lengths],
        "token_type_ids": [rng.integers(0, 2, length) for length in lengths],
    }


def run_original(ids: Array, mask: Array, types: Array) -> tuple[Array, Array]:
    """last_hidden_state [B, S, E] and pooler_output [B, E] of the original in onnxruntime."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(EXPORTED), providers=["CPUExecutionProvider"])
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    hidden, pooled = session.run(["last_hidden_state", "pooler_output"], feeds)
    return hidden, pooled


def expected_of(request: dict[str, list[Array]]) -> tuple[list[Array], Array]:
    lengths = [len(row) for row in request["input_ids"]]
    grid = np.zeros((3, len(lengths), max(lengths)), dtype=np.int64)
    for at, length in enumerate(lengths):
        grid[0, at, :length] = request["input_ids"][at]
        grid[1, at, :length] = 1
        grid[2, at, :length] = request["token_type_ids"][at]
    hidden, pooled = run_original(*grid)
    return [row[:length] for row, length in zip(hidden, lengths, strict=True)], pooled


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_engines_give_the_originals_answers(plans: dict[tuple[str, str], Path], interface: str, precision: str) -> None:
    request = request_of(LENGTHS)
    hidden, pooled = expected_of(request)
    with Session(plans[interface, precision]) as session:
        for _ in range(2):  # the second run uses the same buffers again
            results = session.run(request)
            for expected, result in zip(hidden, results["last_hidden_state"], strict=True):
                np.testing.assert_allclose(result, expected, atol=TOLERANCES[precision])
            np.testing.assert_allclose(np.stack(results["pooler_output"]), pooled, atol=TOLERANCES[precision])


def test_the_metadata_says_what_was_built(packed: Session) -> None:
    engine = packed.metadata.engine
    assert engine is not None
    rewritten = dict(packed.metadata.plugins)
    assert rewritten.pop("PadfreePool") == 1  # the last norm does the pooling
    assert rewritten.pop("PadfreeSchedule") == 1  # the embedding writes the schedule
    assert dict(engine.plugin_layers) == rewritten
    assert engine.plugin_layers["PadfreeAttention"] >= 1


def test_requests_beyond_the_profile_become_several_runs(packed: Session) -> None:
    lengths = [1 + (37 * at) % MAX_SEQ_LEN for at in range(3 * MAX_BATCH + 1)]
    request = request_of(lengths)
    hidden, _ = expected_of(request)
    results = packed.run(request)
    for expected, result in zip(hidden, results["last_hidden_state"], strict=True):
        np.testing.assert_allclose(result, expected, atol=TOLERANCES["fp16"])
    with pytest.raises(SessionError, match=f"takes {MAX_SEQ_LEN}"):
        packed.run(request_of([MAX_SEQ_LEN + 1]))


def test_empty_sequences_and_filler_change_nothing(packed: Session) -> None:
    request = request_of([5, 0, 31, 0])
    plain = packed.run({name: [rows[0], rows[2]] for name, rows in request.items()})
    filler = 29
    arrays = {name: np.concatenate([*rows, np.zeros(filler, dtype=np.int64)]) for name, rows in request.items()}
    results = packed.run_packed(arrays, [5, 0, 31, 0], filler_tokens=filler)
    hidden = results["last_hidden_state"]
    assert hidden.shape[0] == 5 + 31 + filler
    np.testing.assert_allclose(hidden[:5], plain["last_hidden_state"][0], atol=TOLERANCES["fp16"])
    np.testing.assert_allclose(hidden[5:36], plain["last_hidden_state"][1], atol=TOLERANCES["fp16"])
    np.testing.assert_allclose(results["pooler_output"][0], plain["pooler_output"][0], atol=TOLERANCES["fp16"])
    np.testing.assert_allclose(results["pooler_output"][2], plain["pooler_output"][1], atol=TOLERANCES["fp16"])
    assert np.isfinite(results["pooler_output"]).all()


def test_all_empty_sequences_run(packed: Session) -> None:
    results = packed.run({"input_ids": [[], []], "token_type_ids": [[], []]})
    assert [row.shape[0] for row in results["last_hidden_state"]] == [0, 0]


def test_a_packed_engine_in_a_cuda_graph(packed: Session) -> None:
    from padfree.runtime.gpu.tensorrt_backend import TensorRTBackend

    backend = packed.backend
    assert isinstance(backend, TensorRTBackend)
    first, second = (read_request(request_of(LENGTHS, seed), packed.metadata) for seed in (1, 2))
    expected = backend.run(packed.feeds(second))
    with backend.prepare(packed.feeds(first)) as prepared:
        graph = prepared.capture()
        prepared.replace_values(packed.feeds(second))  # the graph was captured with the old values
        graph.launch()
        results = prepared.download()
        assert len(prepared.time_ms(5, graph=graph)) == 5
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value)


def test_padded_engines_refuse_cuda_graphs(padded: Session) -> None:
    from padfree.runtime.gpu.tensorrt_backend import TensorRTBackend

    assert isinstance(padded.backend, TensorRTBackend)
    feeds = padded.feeds(read_request(request_of([3]), padded.metadata))
    with (
        padded.backend.prepare(feeds) as prepared,
        pytest.raises(SessionError, match="CUDA graphs need a packed engine"),
    ):
        prepared.capture()


def masks() -> dict[str, Array]:
    """Prefix, left-padded and holed masks [4, 40]."""
    lengths = np.array([40, 1, 17, 32])
    slots = np.arange(40)[None, :]
    prefix = (slots < lengths[:, None]).astype(np.int64)
    holed = np.random.default_rng(3).integers(0, 2, (4, 40))
    holed[:, 0] = 1  # the pooler reads the first slot, so it has to be a token
    return {"prefix": prefix, "left": prefix[:, ::-1].copy(), "holed": holed}


@pytest.mark.parametrize("kind", ["prefix", "left", "holed"])
def test_padded_engines_take_any_mask(padded: Session, kind: str) -> None:
    mask = masks()[kind]
    rng = np.random.default_rng(4)
    ids, types = rng.integers(0, VOCABULARY, mask.shape), rng.integers(0, 2, mask.shape)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    hidden, pooled = run_original(ids, mask, types)
    results = padded.backend.run(feeds)
    kept = mask == 1
    np.testing.assert_allclose(results["last_hidden_state"][kept], hidden[kept], atol=TOLERANCES["fp16"])
    if kind != "left":  # with left padding the original's pooler reads a masked slot, which nothing can reproduce
        np.testing.assert_allclose(results["pooler_output"], pooled, atol=TOLERANCES["fp16"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tensorrt", "9.9.9", "built by TensorRT 9.9.9"),
        ("compute_capability", "7.0", "built for compute capability 7.0"),
        ("gpu_name", "NVIDIA Nothing", "built on NVIDIA Nothing"),
    ],
)
def test_plans_from_elsewhere_are_refused(
    plans: dict[tuple[str, str], Path], tmp_path: Path, key: str, value: str, message: str
) -> None:
    source = plans["packed", "fp16"]
    plan = tmp_path / "model.plan"
    plan.write_bytes(source.read_bytes())
    metadata = json.loads(source.with_name(source.name + ".json").read_text())
    metadata["engine"][key] = value
    plan.with_name("model.plan.json").write_text(json.dumps(metadata))
    with pytest.raises(SessionError, match=message):
        Session(plan)


def test_sessions_of_one_plan_do_not_disturb_each_other(plans: dict[tuple[str, str], Path]) -> None:
    request = request_of([9, 40])
    with Session(plans["packed", "fp16"]) as first, Session(plans["packed", "fp16"]) as second:
        alone = first.run(request)
        second.run(request_of([128] * 4))
        again = first.run(request)
    for name, rows in alone.items():
        for row, other in zip(rows, again[name], strict=True):
            np.testing.assert_array_equal(row, other)


def test_no_such_device(plans: dict[tuple[str, str], Path]) -> None:
    with pytest.raises(SessionError, match="no GPU number 99"):
        Session(plans["packed", "fp16"], device=99)


def test_a_file_that_is_no_timing_cache_stays_what_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    cache, content = tmp_path / "timing.cache", b"no timing cache at all" * 100
    cache.write_bytes(content)
    logging.getLogger("padfree").propagate = True
    build_engine(EXPORTED, tmp_path / "model.plan", max_batch=2, max_seq_len=32, timing_cache=cache, verify=False)
    assert "left as it is" in caplog.text
    assert cache.read_bytes() == content


def test_a_profile_beyond_the_model(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="profile max 600 > model limit 512 for 'input_ids'; pass --max-seq-len 512"):
        build_engine(EXPORTED, tmp_path / "model.plan", max_seq_len=600, verify=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("typing", ["strong", "weak"])
def test_the_padded_peer_gives_the_originals_answers(tmp_path: Path, typing: Any) -> None:
    from padfree.builder.peers.padded_engine import build_padded_engine

    request = request_of([12, 30, 1])
    hidden, pooled = expected_of(request)
    plan = tmp_path / "peer.plan"
    try:
        build_padded_engine(EXPORTED, plan, max_batch=4, max_seq_len=32, typing=typing)
    except BuildError as error:
        if "needs TensorRT 10" not in str(error):
            raise
        pytest.skip(str(error))
    with Session(plan) as session:
        results = session.run(request)
    for expected, result in zip(hidden, results["last_hidden_state"], strict=True):
        np.testing.assert_allclose(result, expected, atol=TOLERANCES["fp16"])
    np.testing.assert_allclose(np.stack(results["pooler_output"]), pooled, atol=TOLERANCES["fp16"])
