# SPDX-License-Identifier: Apache-2.0
"""The cost of a run in a CUDA graph on the host: counted, not timed, so that all machines agree."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from padfree.runtime import Session, SessionError
from padfree.runtime.arrays.device_arrays import CallerStream, DeviceInput
from padfree.runtime.arrays.dlpack_exchange import exchange_of_type

from ..arrays.test_dlpack_exchange import Library
from . import fake_gpu
from .test_device_inputs import IN_PLACE_COMES
from .test_device_inputs import on_gpu as aligned

CALLS = ("record", "order", "synchronize", "copy", "zero", "launch")
"""Methods of the fake CUDA module: each is one call of the CUDA runtime, except `order`, which is two."""


BUSY = 44  # a stream with work that is not done


class Account:
    """The calls of CUDA in order, from now on."""

    def __init__(self, cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cuda_calls: list[str] = []
        for kind in (cuda.Event, cuda.Stream, cuda.Graph):
            for name in CALLS:
                if hasattr(kind, name):
                    monkeypatch.setattr(kind, name, self._counting(name, getattr(kind, name)))

    def _counting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*values: Any, **named: Any) -> Any:
            self.cuda_calls.append(name)
            return function(*values, **named)

        return count


def feeds(size: int) -> dict[str, Any]:
    ids = np.arange(size, dtype=np.int32)
    return {"input_ids": ids, "token_type_ids": ids % 2, "seq_lens": np.array([size], dtype=np.int32)}


def on_gpu(requests: dict[str, Any]) -> dict[str, Any]:
    return {
        name: DeviceInput(value.ctypes.data, value.shape, value.dtype, None, value) for name, value in requests.items()
    }


@pytest.mark.parametrize(
    ("inputs", "options", "wanted"),
    [
        (feeds, {}, ["copy", "launch", "copy", "synchronize"]),
        (feeds, {"on_device": True}, ["copy", "launch", "copy", "synchronize"]),
        (
            feeds,
            {"on_device": True, "stream": CallerStream(55)},
            # Nothing waits for the run, so an event marks the staging buffer's copy; the next run waits for that event.
            ["order", "synchronize", "copy", "record", "launch", "copy", "order"],
        ),
        (lambda size: on_gpu(feeds(size)), {}, ["copy", "copy", "copy", "launch", "copy", "synchronize"]),
        (
            lambda size: on_gpu(feeds(size)),
            {"stream": CallerStream(BUSY)},
            ["order", "copy", "copy", "copy", "launch", "copy", "synchronize"],
        ),
        # Filler, from 65 tokens to 80: one call sets the ends of all inputs to zero.
        (lambda _size: on_gpu(feeds(65)), {}, ["zero", "copy", "copy", "copy", "launch", "copy", "synchronize"]),
    ],
)
def test_calls_of_cuda_in_a_run(
    setup: Any, monkeypatch: pytest.MonkeyPatch, inputs: Any, options: dict[str, Any], wanted: list[str]
) -> None:
    setup.machine.busy = {BUSY, 55}
    backend = setup.open()
    for _ in range(3):
        backend.run(inputs(16), **options)
    launches = setup.machine.launches
    account = Account(setup.cuda, monkeypatch)
    kept = backend.run(inputs(16), **options)
    assert account.cuda_calls == wanted
    assert setup.machine.launches == launches + 1
    assert set(kept) == {"hidden", "lengths"}


def test_a_staging_buffer_is_used_again_when_its_copy_is_done(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = setup.open()
    for _ in range(3):
        backend.run(feeds(8), on_device=True, stream=CallerStream(55))
    account = Account(setup.cuda, monkeypatch)
    backend.run(feeds(8))
    assert account.cuda_calls == ["synchronize", "copy", "launch", "copy", "synchronize"], "the mark comes first"


def session_over(backend: Any, metadata: Any) -> Session:
    """A Session whose plan is the fake engine."""
    session = Session.__new__(Session)
    session._use(backend, metadata)
    return session


def python_calls(work: Callable[[], Any]) -> Counter[str]:
    """Counts the calls of the runtime's Python functions, by file, without destructors of what earlier tests left."""
    results: Counter[str] = Counter()

    def count(frame: Any, event: str, _value: Any) -> None:
        if event == "call" and "runtime" in frame.f_code.co_filename and "tests" not in frame.f_code.co_filename:
            results[frame.f_code.co_filename.rpartition("/")[2]] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return results


@pytest.mark.parametrize(("sequences", "most"), [(1, 61), (12, 62)])
def test_functions_called_for_a_run(setup: Any, sequences: int, most: int) -> None:
    """Filler included. The number hardly depends on the number of sequences; it used to be 120, which took 40 us."""
    with session_over(setup.open(), setup.metadata) as session:
        request = [[7, 8, 9]] * sequences
        for _ in range(3):
            session.run(request)
        calls = python_calls(lambda: session.run(request))
    assert 20 < calls.total() <= most, calls


def test_functions_called_for_arrays_on_the_gpu(setup: Any) -> None:
    """A graph reads these arrays in place; the number of functions used to be 51."""
    library = Library(stream=0)
    arrays = [library.array(aligned(values.tolist()).owner, index=0) for values in feeds(16).values()]
    with session_over(setup.open(), setup.metadata) as session:

        def run() -> Any:
            return session.run_packed({"input_ids": arrays[0], "token_type_ids": arrays[1]}, arrays[2])

        for _ in range(IN_PLACE_COMES + 2):
            run()
        calls = python_calls(run)
    exchange_of_type.cache_clear()
    assert 20 < calls.total() <= 46, calls


def test_what_waits_for_nothing_is_done_while_the_gpu_works(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are cut into rows before the host waits for the GPU, which writes their values later."""
    order: list[str] = []
    with session_over(setup.open(), setup.metadata) as session:
        for _ in range(3):
            session.run([[1, 2]])
        module = sys.modules["padfree.runtime.session"]
        split, wait = module.split_outputs, setup.cuda.Stream.synchronize
        monkeypatch.setattr(module, "split_outputs", lambda *values: (order.append("rows"), split(*values))[1])
        monkeypatch.setattr(setup.cuda.Stream, "synchronize", lambda self: (order.append("wait"), wait(self))[1])
        results = session.run([[1, 2]])
    assert order[:2] == ["rows", "wait"]
    assert results["hidden"][0].tolist() == [[1, 0], [2, 0]]


def test_calls_with_arrays_on_the_gpu_are_checked_once(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    with session_over(setup.open(), setup.metadata) as session:
        module = sys.modules["padfree.runtime.session"]
        checked, check = [], module.device_feeds
        monkeypatch.setattr(
            module, "device_feeds", lambda *values, **named: (checked.append(1), check(*values, **named))[1]
        )

        def run(size: int) -> None:
            ids = np.arange(size, dtype=np.int32)
            inputs = {
                name: library.array(ids % most, index=0) for name, most in (("input_ids", 99), ("token_type_ids", 2))
            }
            outputs = session.run_packed(inputs, library.array(np.array([size], dtype=np.int32), index=0))
            assert outputs["hidden"].tolist() == [[value, value % 2] for value in range(size)]

        for size in (5, 6, 5, 6, 5):
            run(size)
        assert len(checked) == 2
        for _ in range(2):
            ids = library.array(np.zeros(13, np.int32), index=0)
            with pytest.raises(SessionError, match="13 sequences in one run, the engine's profile takes 12"):
                session.run_packed({"input_ids": ids, "token_type_ids": ids}, ids)
        assert len(checked) == 4, "what is refused is never known"
    exchange_of_type.cache_clear()


def test_single_numbers_are_read_when_the_run_is_over(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of an output [B], one per sequence, come from this run and not from the one before.

    Results are cut into rows during the run; copies to the host take place when it is waited for, as on a GPU.
    """
    hidden, lengths = setup.metadata.outputs
    setup.metadata = replace(setup.metadata, outputs=(hidden, replace(lengths, shape=(None,))))
    shape_of = fake_gpu.Context.get_tensor_shape
    monkeypatch.setattr(
        fake_gpu.Context, "get_tensor_shape", lambda self, name: shape_of(self, name)[: 1 if name == "lengths" else 2]
    )
    stream = setup.cuda.Stream
    copy, synchronize, late = stream.copy, stream.synchronize, list[Any]()

    def copy_late(self: Any, to: int, source: int, size_bytes: int) -> None:
        (block,) = (arena.block for arena in backend._pool._arenas)
        is_result = 0 <= source - block.address < fake_gpu.RESERVED_BYTES
        late.append((self, to, source, size_bytes)) if is_result else copy(self, to, source, size_bytes)

    def synchronize_and_copy(self: Any) -> None:
        while late:
            copy(*late.pop(0))
        synchronize(self)

    monkeypatch.setattr(stream, "copy", copy_late)
    monkeypatch.setattr(stream, "synchronize", synchronize_and_copy)
    backend = setup.open()
    with session_over(backend, setup.metadata) as session:
        for sizes in ([1, 2], [3, 1], [2, 3], [1, 1], [2, 2]):
            results = session.run([[7] * size for size in sizes])
            assert [float(value) for value in results["lengths"]] == sizes
