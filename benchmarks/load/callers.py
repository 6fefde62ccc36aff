# SPDX-License-Identifier: Apache-2.0
"""A few callers who each wait for an answer before they send the next text: python -m benchmarks.load.callers.

    python -m benchmarks.load.contest build --folder /tmp/contest
    python -m benchmarks.load.callers --folder /tmp/contest --json benchmarks/results/local/callers.jsonl

Each of `--callers` has a gRPC connection and a thread of its own. Texts are those of `short-skewed`, one per request.
All answers are compared with those of the same engine called from this process, which is also measured, as `session`:
what a run takes without a server. Needs PADFREE_TRITON.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from padfree.builder.bench.environment import append_record, environment
from padfree.runtime import Session

from benchmarks.command import json_parser

from .client import Array, Outcome, judge
from .contest import CONTENDERS, MAX_SEQ_LEN, MODEL, OUTPUT, serve
from .traffic import Traffic

Ask = Callable[[Array], Array]
"""Maps the ids of one text, [L], to its vector."""


def caller_of(url: str) -> Ask:
    """A caller of a server over gRPC."""
    client = triton.InferenceServerClient(url)
    wanted = [triton.InferRequestedOutput(OUTPUT)]

    def ask(ids: Array) -> Array:
        inputs = []
        for name, values in (("input_ids", ids), ("token_type_ids", np.zeros_like(ids))):
            inputs.append(triton.InferInput(name, [1, len(ids)], "INT32"))
            inputs[-1].set_data_from_numpy(values[None])
        answer: Array = client.infer(MODEL, inputs, outputs=wanted).as_numpy(OUTPUT)[0]
        return answer

    return ask


def measure(
    make_caller: Callable[[], Ask], texts: Sequence[Array], expected: Sequence[Array], callers: int, seconds: float
) -> dict[str, float]:
    """Milliseconds per answer, and how many answers were wrong."""
    times: list[float] = []
    wrong: list[int] = []
    begin = time.perf_counter() + 1.0  # warm-up

    def call(number: int) -> None:
        ask = make_caller()
        at = number * 17
        while (start := time.perf_counter()) < begin + seconds:
            at = (at + 1) % len(texts)
            answer = ask(texts[at])
            if start < begin:
                continue
            times.append(1e3 * (time.perf_counter() - start))
            if judge(np.float32(answer), np.float32(expected[at])) is Outcome.WRONG:
                wrong.append(at)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = np.percentile(times, [50, 99])
    counts = {"callers": callers, "seconds": seconds, "answers": len(times)}
    return {**counts, "wrong": len(wrong), "p50_ms": float(p50), "p99_ms": float(p99)}


def texts_of(pool: int) -> list[Array]:
    """Different texts of skewed lengths, as ids."""
    requests = Traffic(longest=MAX_SEQ_LEN, texts=1).requests(pool)
    return [request.ids[0, : int(request.seq_lens[0, 0])] for request in requests]


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
        shown = " ".join(f"{name} {value:g}" for name, value in found.items())
        print(f"{label}: {shown}", flush=True)
        if arguments.json:
            append_record(arguments.json, {"mode": "callers", "label": label, **environment(), **found})

    with Session(arguments.folder / "packed.plan") as session:

        def ask_session(ids: Array) -> Array:
            vector: Array = session.run([ids])[OUTPUT][0]
            return vector

        expected = [ask_session(ids).copy() for ids in texts]
        tell("session", measure(lambda: ask_session, texts, expected, 1, arguments.seconds))
    for name in arguments.servers:
        with serve(arguments.folder / name) as server:
            url = server.url("grpc")
            for callers in arguments.callers:
                tell(name, measure(lambda url=url: caller_of(url), texts, expected, callers, arguments.seconds))  # type: ignore[misc]


if __name__ == "__main__":
    main()
