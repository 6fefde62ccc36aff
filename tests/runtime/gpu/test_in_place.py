# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs that read a caller's inputs in place: which runs they serve, and that they serve no others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from padfree.runtime.arrays.device_arrays import CallerStream

from .test_device_inputs import IN_PLACE_COMES, check, on_gpu, request
from .test_host_cost import Account

GRAPHS = 64  # graphs with inputs in place that a context keeps; the default of max_graphs is 256


def repeat(backend: Any, feeds: dict[str, Any], ids: list[int], lens: list[int], **options: Any) -> None:
    """Repeats a run until a graph reads these arrays in place."""
    for _ in range(IN_PLACE_COMES + 3):
        check(backend.run(feeds, **options), ids, lens)


def test_arrays_that_come_back_are_read_where_they_are(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = setup.open()
    ids = list(range(4, 20))
    feeds = request(ids, [15, 1])
    repeat(backend, feeds, ids, [15, 1])
    assert setup.machine.captures == 2, "one for the sizes, one for the addresses"
    account = Account(setup.cuda, monkeypatch)
    check(backend.run(feeds), ids, [15, 1])
    assert account.cuda_calls == ["launch", "copy", "synchronize"], "the results' copy alone"
    feeds["input_ids"].owner[:] = list(range(40, 56))
    feeds["token_type_ids"].owner[:] = [0, 1] * 8
    feeds["seq_lens"].owner[:] = [0, 16]
    check(backend.run(feeds), list(range(40, 56)), [0, 16])


def test_other_arrays_never_get_the_answers_of_these(setup: Any) -> None:
    """Runs with other arrays do not see what lies at the addresses that a graph reads."""
    backend = setup.open()
    first = request([4, 5, 6], [2, 1])
    repeat(backend, first, [4, 5, 6], [2, 1])
    first["input_ids"].owner[:] = -1
    first["seq_lens"].owner[:] = 99
    for changed in ("input_ids", "token_type_ids", "seq_lens", ""):
        other = request([7, 8, 9], [1, 2])
        if changed:  # one address differs from the graph's
            fresh = request([4, 5, 6], [2, 1])
            repeat(backend, fresh, [4, 5, 6], [2, 1])
            other = {**fresh, changed: other[changed]}
            wanted = {"input_ids": [7, 8, 9], "seq_lens": [1, 2]}
            hidden = backend.run(other)["hidden"][:, 0].tolist()
            assert hidden == (wanted["input_ids"] if changed == "input_ids" else [4, 5, 6])
            lengths = backend.run(other)["lengths"][:, 0].tolist()
            assert lengths == (wanted["seq_lens"] if changed == "seq_lens" else [2, 1])
        else:
            check(backend.run(other), [7, 8, 9], [1, 2])


def test_the_same_addresses_in_other_sizes(setup: Any) -> None:
    """A library may hand out the same memory again for fewer or more tokens."""
    backend = setup.open()
    feeds = request(list(range(8)), [8])
    repeat(backend, feeds, list(range(8)), [8])
    for size in (7, 6, 8):
        short = {name: feed._replace(shape=(size,)) for name, feed in feeds.items() if name != "seq_lens"}
        for _ in range(3):
            check(backend.run({**short, "seq_lens": on_gpu([size])}), list(range(size)), [size])


def test_what_a_graph_rounds_up_is_copied_and_the_rest_is_not(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = setup.open()
    ids = list(range(4, 20))
    feeds = request(ids, [14, 1, 1])  # three sequences: the graph takes four
    repeat(backend, feeds, ids, [14, 1, 1])
    account = Account(setup.cuda, monkeypatch)
    check(backend.run(feeds), ids, [14, 1, 1])
    assert account.cuda_calls == ["zero", "copy", "launch", "copy", "synchronize"]


def test_lengths_of_the_host(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = setup.open()
    ids = list(range(4, 20))
    feeds = {**request(ids, [15, 1]), "seq_lens": np.array([15, 1], dtype=np.int32)}
    repeat(backend, feeds, ids, [15, 1])
    account = Account(setup.cuda, monkeypatch)
    check(backend.run({**feeds, "seq_lens": np.array([16, 0], dtype=np.int32)}), ids, [16, 0])
    assert account.cuda_calls == ["copy", "launch", "copy", "synchronize"], "the lengths' copy, and the results'"


def test_addresses_that_always_change_make_no_graphs(setup: Any) -> None:
    backend = setup.open()
    kept = [request([seed, 5], [2]) for seed in range(2 * IN_PLACE_COMES)]
    for seed, feeds in enumerate(kept):
        assert backend.run(feeds)["hidden"][:, 0].tolist() == [seed, 5]
    assert setup.machine.captures == 1


def test_graphs_of_addresses_are_few(setup: Any) -> None:
    backend = setup.open()
    kept = [request([seed % 2, 1], [2]) for seed in range(GRAPHS + 4)]
    for seed, feeds in enumerate(kept):
        for _ in range(IN_PLACE_COMES + 2):
            assert backend.run(feeds)["hidden"].tolist() == [[seed % 2, seed % 2], [1, 1]]
    assert setup.machine.open_graphs == 1 + GRAPHS
    assert backend._lanes[0]._graph_runs._in_place.size_bytes <= (1 << 30) // 4
    backend.close()
    assert setup.machine.open_graphs == 0


def test_results_on_the_gpu_and_threads_with_arrays_of_their_own(setup: Any) -> None:
    backend = setup.open()

    def work(seed: int) -> None:
        ids = [seed, 2, 3, 4]
        feeds = request(ids, [3, 1])
        for _ in range(3 * IN_PLACE_COMES):
            outputs = backend.run(feeds, on_device=True, stream=CallerStream(55))
            check({name: value.to_host() for name, value in outputs.items()}, ids, [3, 1])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert setup.machine.captures > 2, "some were read where they are"


def test_a_capture_that_fails_leaves_the_run_right(setup: Any) -> None:
    backend = setup.open()
    feeds = request([4, 5, 6], [2, 1])
    for _ in range(IN_PLACE_COMES):
        check(backend.run(feeds), [4, 5, 6], [2, 1])
    setup.machine.capture_fails = True
    for _ in range(6):
        check(backend.run(feeds), [4, 5, 6], [2, 1])
