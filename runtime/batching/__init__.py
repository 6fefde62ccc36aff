# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime.batching: collects single requests of many callers into runs of a Session."""

from ..budget import Budget, cut
from .batcher import Batcher, Stats
from .costs import CostTable, read_costs
from .dealing import SQUARES_A_TOKEN, even_out, snake
from .errors import BatchingError, ClosedError, DeadlineError, QueueFullError
from .groups import MOST_GROUPS, group_budget
from .partition import partition
from .policies import CheapestCut, FairShare, FirstCome
from .policy import Decision, Policy, latest_start_s
from .speed import Speed, run_budget, with_own_first_tokens
from .waiting import Beginning, Waiting

__all__ = [
    "MOST_GROUPS",
    "SQUARES_A_TOKEN",
    "Batcher",
    "BatchingError",
    "Beginning",
    "Budget",
    "CheapestCut",
    "ClosedError",
    "CostTable",
    "DeadlineError",
    "Decision",
    "FairShare",
    "FirstCome",
    "Policy",
    "QueueFullError",
    "Speed",
    "Stats",
    "Waiting",
    "cut",
    "even_out",
    "group_budget",
    "latest_start_s",
    "partition",
    "read_costs",
    "run_budget",
    "snake",
    "with_own_first_tokens",
]
