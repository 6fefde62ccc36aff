# SPDX-License-Identifier: Apache-2.0
"""Makes files whose batch or sequence axis has a fixed size into graphs for every size that compute the same.

The generalised graph is the original at the original's sizes, by construction: every number and every constant that is
exchanged has its old value there. What the passes then prove about it for all batches, that packed tokens give the same
results as padded ones, holds at these sizes too. So a batch that is padded to the original's sizes has the original's
results, whichever of several possible readings of an ambiguous number was taken.
"""

from .generalise import generalise
from .sizes import FixedSizes, fixed_sizes

__all__ = ["FixedSizes", "fixed_sizes", "generalise"]
