# SPDX-License-Identifier: Apache-2.0
"""What a captured CUDA graph keeps alive, with a stand-in for PyTorch."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import sys
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

TIMING = Path(__file__).parents[3] / "builder" / "peers" / "timing.py"


class Graph:
    """Counts its replays; like the real one, it does not keep what was captured alive."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    stream = SimpleNamespace(wait_stream=lambda _: None)
    cuda = SimpleNamespace(
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _: contextlib.nullcontext(),
        CUDAGraph=Graph,
        graph=lambda _: contextlib.nullcontext(),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    spec = importlib.util.spec_from_file_location("timing_without_torch", TIMING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


class Tensor:
    """Memory that a graph reads."""

    def read(self, log: list[str]) -> None:
        log.append("read")


def test_a_graph_keeps_the_memory_of_what_was_captured(timing: ModuleType) -> None:
    log: list[str] = []
    tensor = Tensor()
    memory = weakref.ref(tensor)
    replay: Any = timing.capture(functools.partial(tensor.read, log))
    del tensor
    gc.collect()
    assert memory() is not None
    plain_runs = len(log)
    replay()
    assert (replay.graph.replays, len(log)) == (1, plain_runs)
    del replay
    gc.collect()
    assert memory() is None
