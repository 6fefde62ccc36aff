# SPDX-License-Identifier: Apache-2.0
"""Texts a second through one call of Session.run, from lists of ids to arrays, with the encoder that most people use.

    python -m benchmarks.engine.session_texts --json benchmarks/results/local/session_texts.jsonl

MiniLM-L6's shape with random weights in fp16, one vector a text; 1200 paragraphs and documentation strings, cut at 256
tokens. `read` is the host's part before anything runs: lists to checked arrays. Every figure is the best of 20.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from padfree.builder import build_engine, cli
from padfree.builder.bench.environment import append_record, environment
from padfree.onnx_tools import save_model, synthetic
from padfree.runtime import Session
from padfree.runtime.request import read_request

from ..accuracy.texts import texts_at_hand
from ..batching.measurement import one_vector

TEXTS, LONGEST = 1200, 256
MAX_BATCH, MAX_TOKENS = 512, 32768
ROUNDS, WARM_UP = 20, 4  # sizes that come back get a graph at the second run
TOKENIZER = Path(cli.__file__).parents[1] / "demo" / "data" / "tokenizer.json"


def make_model(path: Path) -> None:
    """MiniLM-L6's shape, one vector per text."""
    save_model(one_vector(synthetic.bert_model(6, 384, 12, 1536)), path)


def ids_of_texts() -> list[list[int]]:
    """The texts as lists of ids."""
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return [result.ids for result in tokenizer.encode_batch(texts_at_hand(TEXTS))]


def best_ms(work: Callable[[], Any]) -> float:
    """Shortest wall time of a call."""
    times = []
    for _ in range(WARM_UP + ROUNDS):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return round(min(times[WARM_UP:]), 3)


def measure(session: Session) -> dict[str, Any]:
    """One record."""
    rows = ids_of_texts()
    run_ms = best_ms(lambda: session.run(rows))
    return {
        "texts": len(rows),
        "tokens": sum(map(len, rows)),
        "read_ms": best_ms(lambda: read_request(rows, session.metadata)),
        "run_ms": run_ms,
        "texts_per_s": round(1e3 * len(rows) / run_ms),
    }


def main() -> None:
    """Builds, measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append one line to this file")
    parser.add_argument("--plan", type=Path, help="a plan of this model, or a packed file, instead of building one")
    parser.add_argument("--model", type=Path, help="write the model to this file, and end")
    parser.add_argument("--label", default="", help="stands behind the case, as for another version of the runtime")
    arguments = parser.parse_args()
    if arguments.model:
        make_model(arguments.model)
        return
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        plan = arguments.plan
        if plan is None:
            plan = Path(name) / "minilm.plan"
            make_model(plan.with_suffix(".onnx"))
            build_engine(
                plan.with_suffix(".onnx"),
                plan,
                precision="fp16",
                verify=False,
                max_batch=MAX_BATCH,
                max_seq_len=LONGEST,
                max_tokens=MAX_TOKENS,
            )
        with Session(plan) as session:
            record = {"case": f"MiniLM-L6, one vector a text{arguments.label}", **measure(session)}
    print(record, flush=True)
    if arguments.json:
        append_record(arguments.json, {**record, **environment()})


if __name__ == "__main__":
    main()
