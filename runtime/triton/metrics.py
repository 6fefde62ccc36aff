# SPDX-License-Identifier: Apache-2.0
"""What an instance tells on the server's metrics page.

An update is a round trip to the server's process, so runs only add up numbers here, and a thread reports them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from ..request import Ragged

INTERVAL_S = 1.0

COUNTERS = {
    "padfree_tokens_total": "Tokens that were computed",
    "padfree_padded_tokens_total": "Tokens that the same runs would have had if padded to their longest sequence",
    "padfree_sequences_total": "Sequences that were computed",
    "padfree_runs_total": "Runs of the model",
    "padfree_refused_requests_total": "Requests that were answered with an error because they do not fit the model",
}
GAUGES = {
    "padfree_batch_sequences": "Sequences of a run, mean of the newest interval; 0 is no run",
    "padfree_batch_tokens": "Tokens of a run, mean of the newest interval; 0 is no run",
    "padfree_packing_ratio": "Padded tokens for each token computed, in the newest interval; 1 is no padding to save, "
    "0 no run",
}


class Metrics:
    """Counters and gauges of one instance, labelled with `model`, `version`, `instance` and `pid`.

    Every process has series of its own, though those of one model could share them: the server (core 2.51,
    metric_family.cc) counts the users of a series for each process alone, frees it when one of them leaves, and the
    next update of another writes into freed memory. Instances of the old and the new copy of a reloaded model are
    alive together, under one name: hence `pid`.

    Args:
        args: what the server passes to `initialize`.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        self._labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "instance": args["model_instance_name"],
            "pid": str(os.getpid()),
        }
        self._families: list[Any] = []
        self._counters = {name: self._new(name, text, "COUNTER") for name, text in COUNTERS.items()}
        self._gauges = {name: self._new(name, text, "GAUGE") for name, text in GAUGES.items()}
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._shown = (0.0, 0.0, 0.0)  # by the gauges; new ones begin so
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._report_until_stopped, name="padfree-metrics", daemon=True)
        self._thread.start()

    def ran(self, batch: Ragged) -> None:
        """Counts one run."""
        sequences = batch.seq_lens.size
        with self._lock:
            self._counts["padfree_runs_total"] += 1
            self._counts["padfree_sequences_total"] += sequences
            self._counts["padfree_tokens_total"] += int(batch.seq_lens.sum())
            self._counts["padfree_padded_tokens_total"] += sequences * int(batch.seq_lens.max())

    def refused(self, requests: int) -> None:
        """Counts requests that were answered with an error."""
        with self._lock:
            self._counts["padfree_refused_requests_total"] += requests

    def close(self) -> None:
        """Reports what is left and takes the instance's metrics off the page."""
        self._stop.set()
        self._thread.join()
        self._report()
        self._counters.clear()
        self._gauges.clear()
        self._families.clear()

    def _new(self, name: str, description: str, kind: str) -> Any:
        family = pb_utils.MetricFamily(name=name, description=description, kind=getattr(pb_utils.MetricFamily, kind))
        self._families.append(family)  # a family that is gone takes its metrics along
        return family.Metric(labels=self._labels)

    def _report_until_stopped(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._report()

    def _report(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(COUNTERS, 0)
        for name, count in counts.items():
            if count:
                self._counters[name].increment(count)
        runs, tokens = counts["padfree_runs_total"], counts["padfree_tokens_total"]
        shown = (0.0, 0.0, 0.0)
        if runs:
            padded = counts["padfree_padded_tokens_total"]
            shown = (counts["padfree_sequences_total"] / runs, tokens / runs, padded / tokens if tokens else 0.0)
        if shown != self._shown:
            self._shown = shown
            for gauge, value in zip(self._gauges.values(), shown, strict=True):
                gauge.set(value)
