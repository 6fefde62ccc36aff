# SPDX-License-Identifier: Apache-2.0
"""A request that waits, as policies see it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable
from typing import NamedTuple


class Beginning(NamedTuple):
    """What all sequences of a request begin with, where the model computes that once in a run.

    Attributes:
        tokens: what is compared with those of other requests.
        length: how many tokens these are.
    """

    tokens: bytes
    length: int


class Waiting(NamedTuple):
    """A request that waits to be run.

    Attributes:
        length: its tokens, those of all its sequences; what these share counts once.
        arrived_s: when it came.
        deadline_s: when its answer has to be there.
        sequences: how many it has; more than one only where the policy takes groups.
        longest: tokens of its longest sequence, if it has several.
        client: who shares the queue with others (FairShare); None: all who name nobody are one.
        shares: how many clients it stands for.
        turn: when it is its client's turn (`turns`); the queue knows.
        beginning: what its sequences share; None: nothing, or the model cannot use it.
    """

    length: int
    arrived_s: float
    deadline_s: float = math.inf
    sequences: int = 1
    longest: int = 0
    client: Hashable = None
    shares: int = 1
    turn: float = 0.0
    beginning: Beginning | None = None


def computed_tokens(run: Collection[Waiting]) -> int:
    """Tokens of a run of these requests: what several of them begin with counts once."""
    beginnings = Counter(request.beginning for request in run if request.beginning is not None)
    repeated = sum((count - 1) * beginning.length for beginning, count in beginnings.items())
    return sum(request.length for request in run) - repeated
