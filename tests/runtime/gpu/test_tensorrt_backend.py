# SPDX-License-Identifier: Apache-2.0
"""The TensorRT backend's shapes, addresses, graphs and threads, with a GPU and an engine that live on the host."""

from __future__ import annotations

import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from padfree.runtime import SessionError
from padfree.runtime.arrays.device_arrays import CallerStream
from padfree.runtime.gpu.buckets import Sizes
from padfree.runtime.gpu.graph_cache import IDLE_RUNS_A_GRAPH, RUNS_A_CAPTURE

from . import fake_gpu


@pytest.fixture(autouse=True, scope="module")
def _short_collections() -> None:
    """Garbage is collected here again and again, and what earlier tests left need not be looked at each time."""
    gc.collect()
    gc.freeze()


def feeds(ids: list[int], lens: list[int]) -> dict[str, Any]:
    array = np.array(ids, dtype=np.int32)
    return {"input_ids": array, "token_type_ids": array % 2, "seq_lens": np.array(lens, dtype=np.int32)}


def check(outputs: dict[str, Any], ids: list[int], lens: list[int]) -> None:
    """Checks the model's answers: (id, type) of every token, every length, and no filler."""
    assert outputs["hidden"].tolist() == [[value, value % 2] for value in ids]
    assert outputs["lengths"].tolist() == [[length] for length in lens]


@pytest.mark.parametrize("sizes", [(3, 50, 1), (80, 2, 80, 80, 80)])
@pytest.mark.parametrize("graphs", [True, False])
def test_runs_of_any_size_follow_each_other(setup: Any, sizes: tuple[int, ...], graphs: bool) -> None:
    backend = setup.open(cuda_graphs=graphs)
    kept = []
    for size in sizes:
        ids = list(range(size))
        kept.append((backend.run(feeds(ids, [size, 0])), ids))
    for outputs, ids in kept:  # results have memory of their own: later runs did not change them
        check(outputs, ids, [len(ids), 0])


def test_sizes_that_come_back_run_in_a_graph(setup: Any) -> None:
    backend = setup.open()
    machine = setup.machine
    counts = []
    for size in (70, 70, 69, 70):  # all in the bucket of 80
        ids = [value + size for value in range(size)]
        check(backend.run(feeds(ids, [size - 3, 0, 3])), ids, [size - 3, 0, 3])
        counts.append((machine.enqueues, machine.captures, machine.launches))
    # a plain run; a plain run and a capture, which enqueues too; then the graph alone
    assert counts == [(1, 0, 0), (3, 1, 0), (3, 1, 1), (3, 1, 2)]
    assert machine.contexts == 2  # the graph has a context of its own
    backend.run(feeds([1] * 70, [70, 0, 0, 0, 0]))
    assert machine.launches == 2, "another number of sequences"


def test_graphs_are_bounded_in_number(setup: Any) -> None:
    backend = setup.open(max_graphs=2)
    machine = setup.machine
    for size in (16, 32, 48):
        for _ in range(2):
            backend.run(feeds([7] * size, [size]))
    assert machine.launches == 0, "the third size waits until a graph is idle"
    for _ in range(2 * IDLE_RUNS_A_GRAPH + 2):
        backend.run(feeds([7] * 48, [48]))
    assert machine.open_graphs == 2
    machine.launches = 0
    check(backend.run(feeds([5] * 48, [48])), [5] * 48, [48])
    assert machine.launches == 1
    assert backend._lanes[0]._graph_runs._graphs.get(Sizes(16, 1)) is None, "the least recently used one is gone"
    backend.close()
    assert machine.open_graphs == 0


def test_a_slightly_larger_graph_serves_rare_sizes(setup: Any) -> None:
    """Filler takes less than a run without a graph; sizes that come often get a graph of their own."""
    backend = setup.open()
    machine = setup.machine
    for _ in range(2):
        backend.run(feeds([7] * 80, [80, 0, 0]))
    assert (machine.captures, machine.launches) == (1, 0)
    for at, size in enumerate((3, 20, 40, 60)):
        ids = list(range(size))
        check(backend.run(feeds(ids, [size - 1, 1])), ids, [size - 1, 1])
        assert (machine.captures, machine.launches) == (1, at + 1)
    backend.run(feeds([7] * 20, [4] * 5))
    assert machine.launches == 4, "no graph has so many sequences"
    for _ in range(RUNS_A_CAPTURE):
        check(backend.run(feeds([5, 6], [1, 1])), [5, 6], [1, 1])
    assert machine.captures == 2


def test_graphs_are_bounded_in_memory(setup: Any) -> None:
    setup.machine.bytes_a_capture = 4000  # and 1000 for the context
    backend = setup.open(max_graph_bytes=11000)
    for size in (16, 32, 48):
        for _ in range(2):
            backend.run(feeds([7] * size, [size]))
    assert setup.machine.open_graphs == 2


def test_an_engine_that_cannot_be_captured_runs_plain(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []  # caplog would count twice if a command line has set up logging before
    monkeypatch.setattr(
        logging.getLogger("padfree.runtime"), "warning", lambda text, *values: said.append(text % values)
    )
    setup.machine.capture_fails = True
    backend = setup.open()
    for size in (4, 5):
        for _ in range(4):
            check(backend.run(feeds(list(range(size)), [size])), list(range(size)), [size])
    assert setup.machine.captures == 1
    assert said == [
        "no CUDA graphs for this engine, runs stay plain: CUDA failed with cudaErrorStreamCaptureInvalidated"
    ]


@pytest.mark.parametrize("why", ["flag", "block moves", "PadfreeIndex"])
def test_nothing_is_captured_where_it_cannot_or_must_not_be(setup: Any, why: str) -> None:
    setup.machine.keeps_address = why != "block moves"
    if why == "PadfreeIndex":
        object.__setattr__(setup.metadata, "plugins", {"PadfreeIndex": 1})
    backend = setup.open(cuda_graphs=why != "flag")
    for _ in range(4):
        check(backend.run(feeds([1, 2], [2])), [1, 2], [2])
    assert setup.machine.captures == 0


def test_threads_run_at_once_and_get_their_own_answers(setup: Any) -> None:
    backend = setup.open(contexts=3)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            lens = rng.integers(0, 9, rng.integers(1, 12)).tolist()
            lens[0] += 1
            ids = rng.integers(0, 90, sum(lens)).tolist()
            check(backend.run(feeds(ids, lens)), ids, lens)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert setup.machine.launches > 0
    assert setup.machine.open_blocks <= 3


def test_as_many_runs_are_under_way_as_there_are_contexts(setup: Any) -> None:
    backend = setup.open(contexts=2)
    machine = setup.machine
    machine.gate = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(backend.run, feeds([at], [1])) for at in range(3)]
        assert machine.running.acquire(timeout=10)
        assert machine.running.acquire(timeout=10)
        assert not machine.running.acquire(timeout=0.1), "the third one waits for a context"
        machine.gate.set()
        for at, run in enumerate(runs):
            check(run.result(), [at], [1])


def test_close_waits_for_runs_of_other_threads(setup: Any) -> None:
    backend = setup.open()
    setup.machine.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(backend.run, feeds([8], [1]))
        assert setup.machine.running.acquire(timeout=10)
        closing = pool.submit(backend.close)
        setup.machine.gate.set()
        check(run.result(), [8], [1])
        closing.result()
    assert setup.machine.open_blocks == setup.machine.open_streams == 0


def test_engines_share_blocks(setup: Any) -> None:
    first, second = setup.open(), setup.open()
    for backend in (first, second, first, second):
        check(backend.run(feeds([3, 4], [2])), [3, 4], [2])
    assert setup.machine.open_blocks == 1
    assert first.block_bytes == second.block_bytes > 0
    assert first.static_bytes == 64 * fake_gpu.MAX_TOKENS
    first.close()
    check(second.run(feeds([3], [1])), [3], [1])
    second.close()
    assert setup.machine.open_blocks == 0


def test_results_on_the_device(setup: Any) -> None:
    backend = setup.open()
    machine = setup.machine
    machine.busy = {1}
    kept = []
    for at in range(4):  # plain twice, then in a graph
        ids = [at, 2, 3]
        kept.append((backend.run(feeds(ids, [3, 0]), on_device=True), ids))
    for outputs, ids in kept:
        hidden = outputs["hidden"]
        assert (hidden.shape, hidden.dtype, hidden.stream) == ((3, 2), "float32", None)
        check({name: value.to_host() for name, value in outputs.items()}, ids, [3, 0])
    assert len(machine.results) == 4, "the outputs of a run share memory"
    row = kept[0][0]["hidden"][1]
    kept.clear()
    del outputs, hidden
    gc.collect()
    assert len(machine.results) == 1, "what is used somewhere stays"
    assert row.to_host().tolist() == [2, 0]
    del row
    gc.collect()
    assert not machine.results
    assert set(machine.freed) == {1}, "after what the legacy default stream holds"
    machine.busy = set()
    backend.run(feeds([1], [1]), on_device=True)
    gc.collect()
    assert machine.freed[-1] is None, "an idle stream gets no work"


def test_results_in_the_order_of_a_stream(setup: Any) -> None:
    setup.machine.busy = {55}
    backend = setup.open()
    outputs = backend.run(feeds([1], [1]), on_device=True, stream=CallerStream(55))
    assert outputs["hidden"].stream == 55
    (to_us, back) = setup.machine.waits
    assert to_us[0] == 55 == back[1]
    assert to_us[1] == back[0]
    outputs["hidden"].__dlpack__(stream=66)
    assert setup.machine.waits[2:] == [(55, 66)], "a consumer waits for the values"
    setup.machine.busy = set()
    outputs["hidden"].__dlpack__(stream=66)
    assert len(setup.machine.waits) == 3, "unless they are there"
    setup.machine.busy = {55}
    del outputs
    gc.collect()
    assert setup.machine.freed == [55]


def test_host_results_are_lent_and_come_back(setup: Any) -> None:
    backend = setup.open(cuda_graphs=False)
    pinned = []
    for _ in range(5):
        outputs = backend.run(feeds([1, 2], [2]))
        del outputs
        gc.collect()
        pinned.append(setup.machine.open_pinned)
    assert len(set(pinned)) == 1, "one piece of page-locked memory serves all of them"
    last = backend.run(feeds([1, 2], [2]))["hidden"][1:]
    backend.close()
    assert last.tolist() == [[2, 0]], "results outlive the session"
    del last
    gc.collect()
    assert setup.machine.open_pinned == 0


def test_much_lent_memory_makes_results_ordinary(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.modules["padfree.runtime.gpu.results"], "LENT_BYTES", 8192)
    backend = setup.open()
    kept = [backend.run(feeds([at], [1])) for at in range(6)]
    assert setup.machine.open_pinned == 1 + 2, "staging, and two results"
    for at, outputs in enumerate(kept):
        check(outputs, [at], [1])


def test_errors_repeat_what_tensorrt_said(setup: Any) -> None:
    backend = setup.open()
    with pytest.raises(SessionError, match=r"refused shape \[101\] for 'input_ids' \(the newest error\)"):
        backend.run(feeds([0] * 101, [101]))
    setup.machine.run_fails = True
    with pytest.raises(SessionError, match="failed to run the engine: the newest error"):
        backend.run(feeds([1], [1]))
    setup.machine.run_fails = False
    check(backend.run(feeds([1], [1])), [1], [1])  # an error leaves nothing behind


def test_plans_that_cannot_be_loaded(setup: Any) -> None:
    setup.engine.has_contexts = False
    with pytest.raises(SessionError, match="no execution context"):
        setup.open().run(feeds([1], [1]))
    setup.engine = fake_gpu.Engine(setup.machine, {}, ("input_ids", "other"))
    with pytest.raises(SessionError, match="the metadata belongs to another plan"):
        setup.open()
    setup.engine = None
    with pytest.raises(SessionError, match=r"TensorRT cannot load it \(the newest error\)"):
        setup.open()


def test_closing_twice_is_harmless(setup: Any) -> None:
    backend = setup.open()
    backend.run(feeds([1], [1]))
    backend.close()
    backend.close()
    with pytest.raises(SessionError, match="the session is closed"):
        backend.run(feeds([1], [1]))
    assert setup.machine.open_streams == setup.machine.open_blocks == 0


def test_options_out_of_range_are_refused(setup: Any) -> None:
    with pytest.raises(SessionError, match="contexts is 0, allowed: 1 or more"):
        setup.open(contexts=0)


def test_a_prepared_run_is_measured_beside_others(setup: Any) -> None:
    backend = setup.open()
    prepared = backend.prepare(feeds([1, 2], [2]))
    graph = prepared.capture()
    prepared.replace_values(feeds([3, 4], [2]))
    check(backend.run(feeds([9], [1])), [9], [1])
    graph.launch()
    check(prepared.download(), [3, 4], [2])
    assert prepared.time_ms(3, graph=graph) == [1.0] * 3
    before = setup.machine.enqueues
    prepared.profile(object(), 2)
    assert setup.machine.enqueues == before + 2
    with pytest.raises(SessionError, match=r"'input_ids' has shape \[3\], prepared was \(2,\); prepare another run"):
        prepared.replace_values(feeds([1, 2, 3], [3]))
    backend.close()
    prepared.close()
    assert setup.machine.open_graphs == setup.machine.open_blocks == 0
