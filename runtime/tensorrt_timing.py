# SPDX-License-Identifier: Apache-2.0
"""Measures an engine on one batch that fits its profile."""

from __future__ import annotations

import statistics

from .errors import SessionError
from .request import RaggedBatch
from .session import Session

WARM_UP_RUNS = 10


def measure_ms(session: Session, batch: RaggedBatch, iterations: int) -> float:
    """The median GPU time in ms of one run, without copies; as a CUDA graph where that can be and is faster.

    Raises:
        SessionError: the session runs in onnxruntime, not in TensorRT.
    """
    from .gpu.tensorrt_backend import TensorRTBackend

    backend = session.backend
    if not isinstance(backend, TensorRTBackend):
        raise SessionError("GPU times need a plan, this session runs an .onnx file; build an engine and open that")
    with backend.prepare(session.feeds(batch)) as run:
        run.time_ms(WARM_UP_RUNS)
        plain_ms = statistics.median(run.time_ms(iterations))
        if not backend.can_capture:
            return plain_ms
        graph = run.capture()
        run.time_ms(WARM_UP_RUNS, graph=graph)
        return min(plain_ms, statistics.median(run.time_ms(iterations, graph=graph)))
