# SPDX-License-Identifier: Apache-2.0
"""A request that waits, as policies see it."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple


class Waiting(NamedTuple):
    """A request that waits to be run.

    Attributes:
        length: its tokens, those of all its sequences.
        arrived_s: when it came.
        deadline_s: when its answer has to be there.
        sequences: how many it has; more than one only where the policy takes groups.
        longest: tokens of its longest sequence, if it has several.
        client: who shares the queue with others (FairShare); None: all who name nobody are one.
        shares: how many clients it stands for.
        turn: when it is its client's turn (`turns`); the queue knows.
    """

    length: int
    arrived_s: float
    deadline_s: float = math.inf
    sequences: int = 1
    longest: int = 0
    client: Hashable = None
    shares: int = 1
    turn: float = 0.0
