# SPDX-License-Identifier: Apache-2.0
"""What Triton's Python backend adds to a model's time for a request: python -m benchmarks.batching.backend_calls.

It starts the server that PADFREE_TRITON names (tests/triton/install_server.py) with a model that only measures itself,
and prints microseconds per request, medians over calls of many requests.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from tests.support.triton_server import TritonServer

REQUESTS = 4000
AT_ONCE = 128
FEWEST_IN_A_CALL = 16
STEPS = ("inputs()", "is_cancelled()", "InferenceResponse", "InferenceResponseSender.send")

CONFIG = """
backend: "python"
max_batch_size: 64
input { name: "input_ids" data_type: TYPE_INT32 dims: -1 allow_ragged_batch: true }
output { name: "pooled" data_type: TYPE_FP16 dims: 768 }
output { name: "times" data_type: TYPE_FP64 dims: 5 }
dynamic_batching { }
instance_group { kind: KIND_CPU }
"""
MODEL = '''
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        """Half of the responses are sent, the others returned; the times of a call are in those."""
        count, half = len(requests), len(requests) // 2
        pooled, times = np.zeros((count, 768), np.float16), np.zeros((1, 5))
        marks = [time.perf_counter()]
        tensors = [request.inputs()[0].as_numpy() for request in requests]
        marks.append(time.perf_counter())
        cancelled = [request.is_cancelled() for request in requests]
        marks.append(time.perf_counter())
        outputs = [pb_utils.Tensor("pooled", pooled[at : at + 1]) for at in range(count)]
        responses = [pb_utils.InferenceResponse([output]) for output in outputs]
        marks.append(time.perf_counter())
        for request, response in zip(requests[:half], responses[:half]):
            request.get_response_sender().send(response, flags=FINAL)
        marks.append(time.perf_counter())
        times[0] = [count, *(np.diff(marks) / [count, count, count, max(1, half)])]
        measured = pb_utils.Tensor("times", times)
        return [None] * half + [pb_utils.InferenceResponse([output, measured]) for output in outputs[half:]]
'''


def main() -> None:
    """Sends requests, AT_ONCE at a time, and prints what the model measured."""
    with tempfile.TemporaryDirectory(prefix="padfree-calls-") as folder:
        model = Path(folder) / "models" / "calls"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
        (model / "1" / "model.py").write_text(MODEL, encoding="utf-8")
        with TritonServer(Path(os.environ["PADFREE_TRITON"]), [model.parent], Path(folder)) as server:
            times = measure(triton.InferenceServerClient(server.url("grpc")))
    calls = times[times[:, 0] >= FEWEST_IN_A_CALL]
    print(f"{len(calls)} answers from calls of {np.median(calls[:, 0]):.0f} requests (median)")
    for step, column in zip(STEPS, calls.T[1:], strict=True):
        print(f"{step:30} {1e6 * np.median(column):8.1f} us")


def measure(client: triton.InferenceServerClient) -> np.ndarray:
    """One row per answer: how many requests its call had, and seconds per request of each step."""
    answers: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
    room = threading.Semaphore(AT_ONCE)

    def take(result: triton.InferResult | None, error: Exception | None) -> None:
        room.release()
        if error is not None:
            raise error
        answers.put(result.as_numpy("times") if result is not None else None)

    ids = np.zeros((1, 32), np.int32)
    tensor = triton.InferInput("input_ids", list(ids.shape), "INT32")
    tensor.set_data_from_numpy(ids)
    for _ in range(REQUESTS):
        room.acquire()
        client.async_infer("calls", [tensor], take)
    results = [answers.get() for _ in range(REQUESTS)]
    return np.concatenate([rows for rows in results if rows is not None])


if __name__ == "__main__":
    main()
