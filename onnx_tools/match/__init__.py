# SPDX-License-Identifier: Apache-2.0
"""Pure recognition: what nodes compute, told from the analysis; nothing here changes a graph.

The folders build on each other: `values` of inputs, `chains` of nodes, `positions` (biases by distance and key),
`masks`, `attention`.
"""

from .no_match import IF_CONTIGUOUS, Miss, NoMatch

__all__ = ["IF_CONTIGUOUS", "Miss", "NoMatch"]
