# SPDX-License-Identifier: Apache-2.0
"""Gives one spelling to what exporters write in many ways."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis.symbolic import Analysis
from ..base import PassResult
from .choices import write_choices
from .deviations import write_deviations
from .means import write_means
from .query_factors import move_query_factors
from .softmaxes import write_softmaxes
from .transposed_softmaxes import transpose_softmaxes

NAME = "spelling"
REWRITES = (
    write_choices,
    write_softmaxes,
    write_means,
    write_deviations,
    transpose_softmaxes,
    move_query_factors,
)


def spelling(graph: gs.Graph, analysis: Analysis) -> PassResult:
    """Writes choices, Softmaxes, means and variances by these operators, and moves factors of scores to queries."""
    return PassResult(NAME, sum(rewrite(graph, analysis) for rewrite in REWRITES))
