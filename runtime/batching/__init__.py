# SPDX-License-Identifier: Apache-2.0
"""padfree.runtime.batching: collects single requests of many callers into runs of a Session."""

from .budget import Budget, cut
from .costs import CostTable, read_costs
from .partition import partition

__all__ = ["Budget", "CostTable", "cut", "partition", "read_costs"]
