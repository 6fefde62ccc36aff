# SPDX-License-Identifier: Apache-2.0
"""Counters, gauges and histograms of all processes in shared memory, and a page of them in Prometheus' format.

Every process writes a row of its own, so that nothing is locked; the process that shows the page adds up the rows.
Metrics that TEI has too have its names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

METHODS = ("single", "batch")
FAILURES = ("validation", "batch_size", "tokenizer", "backend", "overloaded", "model_type", "unauthorized", "internal")
WORK = ("embed", "predict")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = tuple(1 << power for power in range(6, 18))

COUNTERS: Mapping[str, str] = {
    **{f'te_request_count{{method="{name}"}}': "Requests that came." for name in METHODS},
    **{f'te_request_success{{method="{name}"}}': "Requests that were answered." for name in METHODS},
    **{f'te_request_failure{{err="{name}"}}': "Requests that ended with an error." for name in FAILURES},
    **{f"te_{name}_count": "Texts, or pairs, that came." for name in WORK},
    **{f"te_{name}_success": "Texts, or pairs, that were answered." for name in WORK},
    "padfree_tokens_total": "Tokens that the model computed.",
    "padfree_tokens_saved_total": "Tokens not computed, because texts of a run shared their beginning.",
    "padfree_gone_total": "Requests whose callers hung up before the answer.",
}
HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "te_request_duration": ("Seconds from a request's head to its answer.", SECONDS),
    "te_request_tokenization_duration": ("Seconds until a request's texts were tokens.", SECONDS),
    "te_request_queue_duration": ("Seconds that a group of texts waited for the model.", SECONDS),
    "te_request_inference_duration": ("Seconds of the runs that answered a group of texts.", SECONDS),
    "te_request_input_length": ("Tokens of a text.", LENGTHS),
    "te_batch_next_size": ("Sequences of a run.", SIZES),
    "te_batch_next_tokens": ("Tokens of a run.", TOKENS),
}
GAUGES: Mapping[str, str] = {
    "te_queue_size": "Groups of texts that wait for the model.",
    "padfree_waiting_tokens": "Tokens that wait for the model.",
    "padfree_tokens_a_second": "Tokens per second that the model computes while requests wait; 0 if unknown.",
    "padfree_devices": "GPUs that answer; 1 on a CPU.",
}


def _columns() -> dict[str, int]:
    widths = {
        **dict.fromkeys((*COUNTERS, *GAUGES), 1),
        **{name: len(bounds) + 2 for name, (_, bounds) in HISTOGRAMS.items()},  # the count above them, and the sum
    }
    starts = accumulate(widths.values(), initial=0)
    return dict(zip((*widths, ""), starts, strict=True))


COLUMNS = _columns()
WIDTH = COLUMNS[""]
"""Numbers of a row."""


class ProcessCounters:
    """The counters, gauges and histograms of one process.

    Args:
        memory: shared by all: `rows` times WIDTH doubles.
        at: which row is this process's.
    """

    def __init__(self, memory: Any, at: int) -> None:
        self._numbers: npt.NDArray[np.float64] = np.frombuffer(memory, np.float64).reshape(-1, WIDTH)
        self._own_numbers = self._numbers[at]

    def add(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Adds to a counter of this process."""
        labels_text = ",".join(f'{label}="{text}"' for label, text in labels.items())
        self._own_numbers[COLUMNS[f"{name}{{{labels_text}}}" if labels_text else name]] += value

    def set(self, name: str, value: float) -> None:
        """Sets a gauge."""
        self._own_numbers[COLUMNS[name]] = value

    def observe(self, name: str, values: Iterable[float]) -> None:
        """Adds values to a histogram."""
        start, bounds, numbers = COLUMNS[name], HISTOGRAMS[name][1], self._own_numbers
        for value in values:  # few: one by one is faster than arrays
            numbers[start + bisect_left(bounds, value)] += 1
            numbers[start + len(bounds) + 1] += value

    def read(self, name: str) -> float:
        """A gauge, which one process sets, or a counter of all processes, with its labels."""
        return float(self._numbers[:, COLUMNS[name]].sum())

    def failures(self) -> dict[str, int]:
        """Requests of all processes that ended with an error, by kind of error."""
        return {label: int(self.read(f'te_request_failure{{err="{label}"}}')) for label in FAILURES}

    def page(self) -> str:
        """All numbers of all processes."""
        return "\n".join(self._lines(self._numbers.sum(axis=0))) + "\n"

    def _lines(self, sums: npt.NDArray[np.float64]) -> Iterator[str]:
        seen = set()
        for kind, names in (("counter", COUNTERS), ("gauge", GAUGES)):
            for name, text in names.items():
                plain = name.partition("{")[0]
                if plain not in seen:
                    seen.add(plain)
                    yield from _head(plain, text, kind)
                yield f"{name} {sums[COLUMNS[name]]:.17g}"
        for name, (text, bounds) in HISTOGRAMS.items():
            start = COLUMNS[name]
            yield from _head(name, text, "histogram")
            counts = np.cumsum(sums[start : start + len(bounds) + 1])
            for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
                yield f'{name}_bucket{{le="{bound}"}} {count:.17g}'
            yield f"{name}_sum {sums[start + len(bounds) + 1]:.17g}"
            yield f"{name}_count {counts[-1]:.17g}"


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
