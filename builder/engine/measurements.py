# SPDX-License-Identifier: Apache-2.0
"""What a build measured of engines with different GEMMs and norms, and which of them is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from padfree.runtime import Profile

SHORT_TOKENS = 128
"""Tokens of the short request, where the profile allows so many."""
SHORTEST_SHARE = 0.2
"""The shortest sequence of the typical request, in parts of the longest."""
TIE = 0.02
"""Costs this close are equal: what two measurements of one engine differ by."""


@dataclass(frozen=True)
class TimedRequest:
    """What an engine is timed with: sequences of these lengths."""

    seq_lens: tuple[int, ...]

    @property
    def text(self) -> str:
        """The request in words."""
        count, tokens = len(self.seq_lens), sum(self.seq_lens)
        return f"{count} sequences of {tokens} tokens in all" if count > 1 else f"one text of {tokens} tokens"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metadata."""
        return {"sequences": len(self.seq_lens), "tokens": sum(self.seq_lens)}


def requests_of(profile: Profile) -> tuple[TimedRequest, TimedRequest]:
    """A batch of the tokens that the profile is tuned for, and one short text."""
    longest = profile.max_seq_len
    mean = longest * (1 + SHORTEST_SHARE) / 2
    count = min(profile.max_batch, max(1, round(profile.opt_tokens / mean)))
    lengths = np.linspace(SHORTEST_SHARE, 1, count) * longest
    lengths = np.clip(np.round(lengths * profile.opt_tokens / lengths.sum()), 1, longest).astype(int)
    while lengths.sum() > profile.max_tokens:
        lengths[lengths.argmax()] -= 1
    return TimedRequest(tuple(map(int, lengths))), TimedRequest((min(SHORT_TOKENS, longest, profile.max_tokens),))


@dataclass(frozen=True)
class TimedChoice:
    """An engine's choices, and how long it takes for the requests; `problem` says why there are no times."""

    linear: str
    norms: str
    times_ms: tuple[float, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metadata."""
        choices = {"linear": self.linear, "norms": self.norms}
        return choices | ({"problem": self.problem} if self.problem else {"ms": list(self.times_ms)})


@dataclass(frozen=True)
class PaddedTime:
    """What TensorRT's engine of the model as it was exported takes for the short text, or why that is not known."""

    time_ms: float | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metadata."""
        return {"problem": self.problem} if self.time_ms is None else {"short_ms": self.time_ms}


@dataclass(frozen=True)
class Measurements:
    """All candidates, in the order in which ties are decided."""

    requests: tuple[TimedRequest, TimedRequest]
    candidates: tuple[TimedChoice, ...]
    padded: PaddedTime

    def best(self) -> int | None:
        """The number of the candidate to keep; None where nothing could be timed.

        Candidates that are not slower than the padded engine on the short text come first, if there are any. Of these,
        the cheapest is kept: its cost is the geometric mean of its times, each in parts of the fastest candidate's.
        """
        numbers = [at for at, item in enumerate(self.candidates) if not item.problem]
        if not numbers:
            return None
        limit = math.inf if self.padded.time_ms is None else self.padded.time_ms
        eligible = [at for at in numbers if self.candidates[at].times_ms[-1] <= limit] or numbers
        columns = zip(*(self.candidates[at].times_ms for at in numbers), strict=True)
        fastest = [min(column) for column in columns]
        costs = {at: _mean_ratio(self.candidates[at].times_ms, fastest) for at in eligible}
        least = min(costs.values())
        return next(at for at in eligible if costs[at] <= least * (1 + TIE))

    def warning(self) -> str:
        """Both times, where TensorRT's padded engine is faster on the short text; else nothing."""
        number = self.best()
        if number is None or self.padded.time_ms is None:
            return ""
        time_ms = self.candidates[number].times_ms[-1]
        if time_ms <= self.padded.time_ms:
            return ""
        return (
            f"for {self.requests[-1].text}, packing does not win on this GPU: {time_ms:.3g} ms, and "
            f"{self.padded.time_ms:.3g} ms in TensorRT's engine of the padded model; padfree bench compares both on "
            "your batches"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the plan's metadata."""
        return {
            "requests": [request.to_dict() for request in self.requests],
            "engines": [item.to_dict() for item in self.candidates],
            "kept": self.best(),
            "padded": self.padded.to_dict(),
        }


def _mean_ratio(times: Sequence[float], fastest: Sequence[float]) -> float:
    ratios = [time / least for time, least in zip(times, fastest, strict=True)]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
