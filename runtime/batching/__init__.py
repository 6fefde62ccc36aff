# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime.batching: collects single requests of many callers into runs of a Session."""

from ..budget import Budget, cut
from .batcher import Batcher, Stats
from .costs import CostTable, read_costs
from .errors import BatchingError, ClosedError, DeadlineError, QueueFullError
from .partition import partition
from .policies import CheapestCut, FairShare, FirstCome
from .policy import Decision, Policy
from .waiting import Waiting

__all__ = [
    "Batcher",
    "BatchingError",
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
    "Stats",
    "Waiting",
    "cut",
    "partition",
    "read_costs",
]
