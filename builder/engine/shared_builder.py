# SPDX-License-Identifier: Apache-2.0
"""TensorRT's builder for several engines of one process: it takes 4.4 to 5.8 s to start, so it starts once."""

from __future__ import annotations

import contextlib

from padfree.runtime import SessionError
from padfree.runtime.gpu import plugin_library
from rich.progress import Progress

from ..errors import BuildError
from .engine_builder import EngineBuilder, TacticOptions

Start = EngineBuilder | SessionError | BuildError


class SharedBuilder:
    """Starts when the first engine asks for it, while that engine's model is prepared; the others reuse it.

    The first engine's GPU, timing cache and options of TensorRT hold for all.
    """

    def __init__(self) -> None:
        self._start: Start | None = None

    def get(self, device: int, options: TacticOptions, progress: Progress | None) -> Start:
        """The builder, or the error: errors of the model's file are reported first."""
        if isinstance(self._start, EngineBuilder):
            self._start.begin(progress)
        elif self._start is None:
            self._start = start(device, options, progress)
        return self._start


def start(device: int, options: TacticOptions, progress: Progress | None) -> Start:
    """Starts TensorRT's builder, with the plugins loaded if there are any; or returns the error."""
    try:
        builder = EngineBuilder(device, options, progress)
        with contextlib.suppress(SessionError):
            plugin_library.load()  # now, while the model is prepared
        return builder
    except (SessionError, BuildError) as error:
        return error
