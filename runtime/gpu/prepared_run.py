# SPDX-License-Identifier: Apache-2.0
"""One batch of an engine held ready, to be run again and again and measured."""

from __future__ import annotations

from typing import Any

from padfree.contract.closing import Closing

from ..arrays.device_arrays import DeviceFeeds
from ..errors import SessionError
from ..rows import Array
from .cuda import Graph, current_device
from .lane import Lane


class PreparedRun(Closing):
    """Inputs on the device and a context bound to them, in memory of their own.

        with session.backend.prepare(session.feeds(batch)) as prepared:
            graph = prepared.capture()
            times_ms = prepared.time_ms(100, graph=graph)

    The engine runs in exactly the shapes of the inputs. One caller at a time. The session's close() closes it too.
    """

    def __init__(self, lane: Lane, feeds: DeviceFeeds, *, device: int, can_capture: bool) -> None:
        self._lane = lane
        self._device = device
        self._can_capture = can_capture
        self._graphs: list[Graph] = []
        self._closed = False
        self._shapes = {name: tuple(feed.shape) for name, feed in feeds.items()}
        self._ready = lane.prepare(feeds)

    def enqueue(self) -> None:
        """Puts one run on the stream."""
        with current_device(self._device):
            self._lane.enqueue()

    def capture(self) -> Graph:
        """A CUDA graph of enqueue(); it is destroyed when the prepared run is closed.

        Raises:
            SessionError: an engine with the padded interface, whose token count depends on data, or a capture that
                fails.
        """
        if not self._can_capture:
            raise SessionError("CUDA graphs need a packed engine, this one is padded; build with --interface packed")
        stream = self._lane.arena.stream
        with current_device(self._device):
            self._lane.enqueue()  # the first run after a change of shapes may allocate, which a capture forbids
            stream.synchronize()
            self._graphs.append(stream.capture(self._lane.enqueue))
        return self._graphs[-1]

    def replace_values(self, feeds: DeviceFeeds) -> None:
        """Copies other values of the same shapes to where enqueue() and captured graphs read them.

        Raises:
            SessionError: a shape differs from the one that was prepared.
        """
        for name, feed in feeds.items():
            if self._shapes.get(name) != tuple(feed.shape):
                raise SessionError(
                    f"'{name}' has shape {list(feed.shape)}, prepared was {self._shapes.get(name)}; prepare another run"
                )
        with current_device(self._device):
            self._ready.staging.upload(feeds, is_async=True)

    def time_ms(self, iterations: int, *, graph: Graph | None = None) -> list[float]:
        """GPU times in ms of enqueue(), or of a captured graph."""
        with current_device(self._device):
            return self._lane.arena.stream.time_ms(graph.launch if graph else self._lane.enqueue, iterations)

    def profile(self, profiler: Any, runs: int) -> None:
        """Runs the engine under a tensorrt.IProfiler, which gets every layer's time in these and all later runs."""
        with current_device(self._device):
            self._lane.profile(profiler, runs)

    def download(self) -> dict[str, Array]:
        """The outputs of the newest run."""
        with current_device(self._device):
            return self._lane.download(self._ready)

    def close(self) -> None:
        """Destroys the graphs and frees the memory; harmless when called again."""
        if self._closed:
            return
        self._closed = True
        with current_device(self._device):
            self._lane.arena.stream.synchronize()
            for graph in self._graphs:
                graph.close()
            self._lane.close()
            self._lane.arena.close()
