# SPDX-License-Identifier: Apache-2.0
"""What an instance shows on the server's metrics page.

An update is a round trip to the server's process, so runs only add up numbers here, and a thread reports them.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from ..request import RaggedBatch
from .answers import Failure, Reply

INTERVAL_S = 1.0

ANSWERED_COUNTERS = {
    "padfree_refused_requests_total": "Requests that were answered with an error because they do not fit the model",
    "padfree_failed_requests_total": "Requests that were answered with an error which is not their fault",
}
TOKENIZER_COUNTERS = {
    **ANSWERED_COUNTERS,
    "padfree_truncated_texts_total": "Texts that lost their ends because the model does not take so many tokens",
}
ENCODER_COUNTERS = {
    **ANSWERED_COUNTERS,
    "padfree_tokens_total": "Tokens that were computed",
    "padfree_padded_tokens_total": "Tokens that the same runs would have had if padded to their longest sequence",
    "padfree_sequences_total": "Sequences that were computed",
    "padfree_runs_total": "Runs of the model",
    "padfree_call_seconds_sum": "Seconds from a call of the server to its answers, once for every request of it",
    "padfree_call_seconds_count": "Requests in padfree_call_seconds_sum",
}
BUCKETS = "padfree_call_seconds_bucket"
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
GAUGES = {
    "padfree_batch_sequences": "Sequences of a run, mean of the newest interval; 0 is no run",
    "padfree_batch_tokens": "Tokens of a run, mean of the newest interval; 0 is no run",
    "padfree_packing_ratio": "Padded tokens for each token computed, in the newest interval; 1 is no padding to save, "
    "0 no run",
}


class Counters:
    """Counters of one instance, labelled with `model`, `version`, `instance` and `pid`.

    Every process has series of its own, though those of one model could share them: the server (core 2.51,
    metric_family.cc) counts the users of a series for each process alone, frees it when one of them leaves, and the
    next update of another writes into freed memory. Instances of the old and the new copy of a reloaded model are
    alive together, under one name: hence `pid`.

    Args:
        args: what the server passes to `initialize`.
        counters: name -> description.
    """

    def __init__(self, args: Mapping[str, str], counters: Mapping[str, str]) -> None:
        self._labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "instance": args["model_instance_name"],
            "pid": str(os.getpid()),
        }
        self._families: list[Any] = []
        self._counters = {name: self._family(name, text, "COUNTER")() for name, text in counters.items()}
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(self._counters, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._report_until_stopped, name="padfree-metrics", daemon=True)

    def start(self) -> None:
        """Begins to report."""
        self._thread.start()

    def add(self, name: str, value: float) -> None:
        """Adds to a counter."""
        with self._lock:
            self._counts[name] += value

    def count_answers(self, answers: Sequence[Reply]) -> None:
        """Counts the errors among answers."""
        for answer in answers:
            if isinstance(answer, Failure) and not answer.cancelled:
                self.add(f"padfree_{'refused' if answer.is_refusal else 'failed'}_requests_total", 1)

    def close(self) -> None:
        """Reports what is left and takes the instance's metrics off the page."""
        self._stop.set()
        self._thread.join()
        self._report()
        self._counters.clear()
        self._families.clear()

    def _family(self, name: str, description: str, kind: str) -> Any:
        """Makes metrics of one name, with further labels."""
        family = pb_utils.MetricFamily(name=name, description=description, kind=getattr(pb_utils.MetricFamily, kind))
        self._families.append(family)  # a family that is gone takes its metrics along
        return lambda **labels: family.Metric(labels={**self._labels, **labels})

    def _report_until_stopped(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._report()

    def _report(self) -> dict[str, float]:
        """Reports what was counted since the last time, and returns it."""
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(self._counts, 0)
        for name, count in counts.items():
            if count:
                self._counters[name].increment(count)
        return counts


class Metrics(Counters):
    """What an encoder shows: counters, gauges of the newest second, and a histogram of the calls' times.

    The histogram is made of counters with a label `le`, which Prometheus reads alike: the backend's own kind takes a
    round trip for every value.

    Args:
        args: what the server passes to `initialize`.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        super().__init__(args, ENCODER_COUNTERS)
        self._gauges = {name: self._family(name, text, "GAUGE")() for name, text in GAUGES.items()}
        bucket = self._family(BUCKETS, "Requests whose call took no longer than le seconds", "COUNTER")
        self._buckets = [bucket(le=str(bound)) for bound in BOUNDS_S] + [bucket(le="+Inf")]
        self._in_bucket = [0] * len(self._buckets)
        self._last_totals = (0.0, 0.0, 0.0)  # as the gauges show; new gauges begin with these

    def count_run(self, batch: RaggedBatch) -> None:
        """Counts one run."""
        sequences = batch.seq_lens.size
        with self._lock:
            self._counts["padfree_runs_total"] += 1
            self._counts["padfree_sequences_total"] += sequences
            self._counts["padfree_tokens_total"] += int(batch.seq_lens.sum())
            self._counts["padfree_padded_tokens_total"] += sequences * int(batch.seq_lens.max())

    def count_call(self, answers: Sequence[Reply], seconds: float) -> None:
        """Counts a call of the server and its answers."""
        self.count_answers(answers)
        with self._lock:
            self._counts["padfree_call_seconds_sum"] += seconds * len(answers)
            self._counts["padfree_call_seconds_count"] += len(answers)
            self._in_bucket[bisect_left(BOUNDS_S, seconds)] += len(answers)

    def close(self) -> None:
        """Reports what is left and takes the instance's metrics off the page."""
        super().close()
        self._gauges.clear()
        self._buckets.clear()

    def _report(self) -> dict[str, float]:
        counts = super()._report()
        self._report_buckets()
        runs, tokens = counts["padfree_runs_total"], counts["padfree_tokens_total"]
        totals = (0.0, 0.0, 0.0)
        if runs:
            padded = counts["padfree_padded_tokens_total"]
            totals = (counts["padfree_sequences_total"] / runs, tokens / runs, padded / tokens if tokens else 0.0)
        if totals != self._last_totals:
            self._last_totals = totals
            for gauge, value in zip(self._gauges.values(), totals, strict=True):
                gauge.set(value)
        return counts

    def _report_buckets(self) -> None:
        with self._lock:
            counts, self._in_bucket = self._in_bucket, [0] * len(self._in_bucket)
        up_to = 0
        for bucket, count in zip(self._buckets, counts, strict=True):
            up_to += count
            if up_to:
                bucket.increment(up_to)
