# SPDX-License-Identifier: Apache-2.0
"""Inputs on the GPU in the TensorRT backend: plain runs read them in place, graphs get copies, in stream order.

test_in_place.py tests graphs that read in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from padfree.runtime.arrays.device_arrays import LEGACY_STREAM, CallerStream, DeviceInput

IN_PLACE_COMES = 64  # how often addresses must come before a graph is made for them


def on_gpu(values: list[int], stream: int | None = None, *, shift: int = 0) -> DeviceInput:
    """An input in the GPU's memory (here the host's), `shift` numbers after an aligned address."""
    memory = np.zeros(len(values) + shift + 64, dtype=np.int32)
    start = -memory.ctypes.data % 256 // 4 + shift
    array = memory[start : start + len(values)]
    array[:] = values
    return DeviceInput(array.ctypes.data, array.shape, array.dtype, stream, array)


def request(ids: list[int], lens: list[int], stream: int | None = None) -> dict[str, Any]:
    types = [value % 2 for value in ids]
    return {"input_ids": on_gpu(ids, stream), "token_type_ids": on_gpu(types), "seq_lens": on_gpu(lens)}


def check(outputs: dict[str, Any], ids: list[int], lens: list[int]) -> None:
    assert outputs["hidden"].tolist() == [[value, value % 2] for value in ids]
    assert outputs["lengths"].tolist() == [[length] for length in lens]


def test_plain_runs_read_them_in_place(setup: Any) -> None:
    backend = setup.open(cuda_graphs=False)
    check(backend.run(request([5, 6, 7], [2, 1])), [5, 6, 7], [2, 1])
    assert setup.machine.copies == 1, "the results alone"


@pytest.mark.parametrize("graphs", [True, False])
def test_what_begins_where_tensorrt_cannot_read_is_copied(setup: Any, graphs: bool) -> None:
    """TensorRT asks for addresses that are multiples of 256 bytes; parts of arrays begin anywhere."""
    backend = setup.open(cuda_graphs=graphs)
    feeds = {**request([5, 6, 7], [2, 1]), "input_ids": on_gpu([5, 6, 7], shift=1)}
    for _ in range(IN_PLACE_COMES + 4):
        setup.machine.copies = 0
        check(backend.run(feeds), [5, 6, 7], [2, 1])
        assert setup.machine.copies >= 2, "the results, and what begins elsewhere"


def test_graphs_get_a_copy_with_zeros_after_it(setup: Any) -> None:
    backend = setup.open()
    for size in (70, 69, 70, 69):
        ids = list(range(1, size + 1))
        check(backend.run(request(ids, [size - 2, 2, 0])), ids, [size - 2, 2, 0])
    assert setup.machine.launches == 2
    assert setup.machine.ids == [*range(1, 70), *[0] * 11]


@pytest.mark.parametrize("graphs", [True, False])
def test_some_on_the_gpu_and_some_not(setup: Any, graphs: bool) -> None:
    backend = setup.open(cuda_graphs=graphs)
    for seed in range(4):
        ids = [seed + 1, 8, 3]
        mixed = {**request(ids, [1, 2]), "token_type_ids": np.array([value % 2 for value in ids], dtype=np.int32)}
        check(backend.run(mixed), ids, [1, 2])


def test_runs_wait_for_the_streams_that_make_inputs(setup: Any) -> None:
    setup.machine.busy = {LEGACY_STREAM, 55, 77}
    backend = setup.open()
    backend.run(request([1], [1]))
    ours = {lane.arena.stream.handle for lane in backend._lanes.values()}
    assert [(first, then in ours) for first, then in setup.machine.waits] == [(LEGACY_STREAM, True)]
    setup.machine.waits.clear()
    backend.run(request([1], [1], stream=77), stream=CallerStream(55))
    assert {first for first, _ in setup.machine.waits} == {55, 77}
    setup.machine.waits.clear()
    feeds = {
        "input_ids": np.ones(1, np.int32),
        "token_type_ids": np.ones(1, np.int32),
        "seq_lens": np.ones(1, np.int32),
    }
    backend.run(feeds)
    assert not setup.machine.waits, "nothing to wait for"


def test_runs_wait_for_no_stream_whose_work_is_done(setup: Any) -> None:
    backend = setup.open()
    setup.machine.busy = {77}
    check(backend.run(request([1], [1], stream=77), stream=CallerStream(55)), [1], [1])
    assert [first for first, _ in setup.machine.waits] == [77]
    setup.machine.waits.clear()
    setup.machine.busy = set()
    check(backend.run(request([2], [1], stream=77), stream=CallerStream(55)), [2], [1])
    check(backend.run(request([3], [1])), [3], [1])
    assert not setup.machine.waits


def test_the_size_of_an_input() -> None:
    assert on_gpu([1, 2, 3]).nbytes == 12
    assert DeviceInput(0, (2, 0), np.dtype(np.int32)).nbytes == 0
