# SPDX-License-Identifier: Apache-2.0
"""Writes out operators that stand for several others: the other passes know what these do."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis.symbolic import Analysis
from ..base import PassResult
from ..spelling.means import write_sums
from .convolutions import expand_batch_norms, expand_convolutions, expand_global_pools
from .einsum import expand_einsums

NAME = "expansion"
REWRITES = (expand_einsums, expand_convolutions, expand_global_pools, expand_batch_norms, write_sums)


def expansion(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Writes out Einsum, convolutions, pooling over all positions, batch norms, and sums that a MatMul computes."""
    return PassResult(NAME, sum(rewrite(graph, analysis) for rewrite in REWRITES))
