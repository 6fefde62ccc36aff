# SPDX-License-Identifier: Apache-2.0
"""A few callers who each wait for an answer before they send the next text: python -m benchmarks.load.callers.

    python -m benchmarks.load.contest build --folder /tmp/contest
    python -m benchmarks.load.callers --folder /tmp/contest --json benchmarks/results/local/callers.jsonl

Each of `--callers` is a process with a gRPC connection (http2.py). Texts are those of `short-skewed`, one per request.
Requests are serialised beforehand and answers are read afterwards, as tritonclient itself takes longer for both than a
server for its part. All answers are compared with those of the same engine called from this process, which is also
measured, as `session`: what a run takes without a server; `gpu_ms` is the median of what the GPU needs of that. Needs
PADFREE_TRITON.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from padfree.runtime import Session
from padfree.runtime.request import read_request
from tritonclient.grpc import service_pb2

from benchmarks.command import json_parser, keep

from .client import Array, Outcome, judge
from .contest import CONTENDERS, MAX_SEQ_LEN, MODEL, OUTPUT, serve
from .http2 import MODEL_INFER, Order, Seen, in_processes
from .traffic import Traffic

STRIDE = 17
"""Between the first texts of two callers."""
WARM_UP_S = 3.0
"""In which every text is asked for several times, so that sizes have their CUDA graphs."""
GPU_TEXTS = 60
"""The GPU's time is the median over so many texts."""


def request_of(ids: Array) -> bytes:
    """The request for the vector of one text, [L], serialised."""
    inputs, contents = [], []
    for name, values in (("input_ids", ids), ("token_type_ids", np.zeros_like(ids))):
        item = service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype="INT32", shape=[1, len(ids)])
        inputs.append(item)
        contents.append(values.astype(np.int32).tobytes())
    outputs = [service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=OUTPUT)]
    request = service_pb2.ModelInferRequest(
        model_name=MODEL, inputs=inputs, outputs=outputs, raw_input_contents=contents
    )
    return bytes(request.SerializeToString())


def vector_of(answer: bytes) -> Array:
    """The vector in the serialised answer to a request of one text."""
    response = service_pb2.ModelInferResponse.FromString(answer)
    vector: Array = triton.InferResult(response).as_numpy(OUTPUT)[0]
    return vector


def ask_server(url: str, requests: Sequence[bytes], callers: int, seconds: float) -> list[Seen]:
    """What `callers` processes saw."""
    begin = time.perf_counter() + WARM_UP_S
    return in_processes(
        [Order(url, MODEL_INFER, requests, number * STRIDE, begin, begin + seconds) for number in range(callers)]
    )


def ask_session(session: Session, texts: Sequence[Array], seconds: float) -> list[Seen]:
    """What a caller of a Session in this process sees."""
    found: list[Seen] = []
    begin = time.perf_counter() + WARM_UP_S
    for at in itertools.cycle(range(len(texts))):
        if (start := time.perf_counter()) >= begin + seconds:
            return found
        vector = session.run([texts[at]])[OUTPUT][0]
        if start >= begin:
            found.append((at, 1e3 * (time.perf_counter() - start), bytes(np.float32(vector).tobytes())))
    return found


def summary(
    found: Sequence[Seen], expected: Sequence[Array], vector: Callable[[bytes], Array], callers: int, seconds: float
) -> dict[str, float]:
    """Milliseconds per answer, and how many answers were wrong."""
    wrong = sum(judge(np.float32(vector(answer)), np.float32(expected[at])) is Outcome.WRONG for at, _, answer in found)
    p50, p99 = np.percentile([milliseconds for _, milliseconds, _ in found], [50, 99])
    counts = {"callers": callers, "seconds": seconds, "answers": len(found), "wrong": wrong}
    return {**counts, "p50_ms": float(p50), "p99_ms": float(p99)}


def texts_of(pool: int) -> list[Array]:
    """Different texts of skewed lengths, as ids."""
    requests = Traffic(longest=MAX_SEQ_LEN, texts=1).requests(pool)
    return [request.ids[0, : int(request.seq_lens[0, 0])] for request in requests]


def gpu_ms(session: Session, texts: Sequence[Array]) -> float:
    """The median over texts of a run's time in a CUDA graph."""

    def one(ids: Array) -> float:
        with session.backend.prepare(session.feeds(read_request([ids], session.metadata))) as prepared:  # type: ignore[attr-defined]
            graph = prepared.capture()
            prepared.time_ms(5, graph=graph)
            return float(statistics.median(prepared.time_ms(20, graph=graph)))

    return statistics.median(map(one, texts))


def main() -> None:
    """Runs the command line."""
    parser = json_parser(__doc__, "one line per measurement")
    parser.add_argument("--folder", type=Path, required=True, help="what `benchmarks.load.contest build` wrote")
    parser.add_argument("--servers", nargs="+", choices=CONTENDERS, default=["packed", "native", "padded"])
    parser.add_argument("--callers", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--pool", type=int, default=300, help="different texts")
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    texts = texts_of(arguments.pool)

    def tell(label: str, found: dict[str, float]) -> None:
        shown = " ".join(f"{name} {value:.4g}" for name, value in found.items())
        print(f"{label}: {shown}", flush=True)
        keep(arguments.json, {"case": f"{label}, {found['callers']} at once", "label": label, **found})

    with Session(arguments.folder / "packed.plan") as session:

        def read(answer: bytes) -> Array:
            return np.frombuffer(answer, np.float32)

        expected = [np.array(session.run([ids])[OUTPUT][0], np.float32) for ids in texts]
        seen = ask_session(session, texts, arguments.seconds)
        found = summary(seen, expected, read, 1, arguments.seconds)
        tell("session", {**found, "gpu_ms": gpu_ms(session, texts[:GPU_TEXTS])})
    requests = [request_of(ids) for ids in texts]
    for name in arguments.servers:
        with serve(arguments.folder / name) as server:
            for callers in arguments.callers:
                seen = ask_server(server.url("grpc"), requests, callers, arguments.seconds)
                tell(name, summary(seen, expected, vector_of, callers, arguments.seconds))


if __name__ == "__main__":
    main()
