# SPDX-License-Identifier: Apache-2.0
"""LightFuture against the standard library's Future."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FuturesTimeout  # not yet the built-in one in Python 3.10

import pytest
from padfree.runtime.batching.future import Completion, LightFuture


def test_it_has_what_the_standard_library_s_has() -> None:
    """LightFuture sets its fields without the standard library's code, which may get others."""
    light, standard = vars(LightFuture()), vars(Future())
    assert isinstance(light.pop("_condition"), Completion)
    del standard["_condition"]
    assert light == standard


def test_every_waiting_thread_is_woken() -> None:
    future = LightFuture()
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(future.result(10))) for _ in range(3)]
    for thread in threads:
        thread.start()
    with pytest.raises(FuturesTimeout):
        future.exception(0.01)
    future.set_result(7)
    for thread in threads:
        thread.join()
    assert results == [7, 7, 7]
    assert future.result() == 7
    assert wait([future, LightFuture()], 0.01).done == {future}


def test_who_waited_leaves_nothing_for_the_garbage_collector() -> None:
    future = LightFuture()
    setter = threading.Timer(0.01, future.set_result, [1])
    setter.start()
    assert future.result(10) == 1
    setter.join()
    assert not any(isinstance(item, threading.Condition) for item in gc.get_referents(vars(future)["_condition"]))
