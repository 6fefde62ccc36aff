# SPDX-License-Identifier: Apache-2.0
"""What the graph of an original tells about the model, before passes change how it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from .analysis import longest_sequence
from .analysis.held_positions import held_positions
from .analysis.special_ids import SpecialIds, special_ids
from .analysis.symbolic import Analysis


@dataclass(frozen=True)
class Traits:
    """Traits of a model.

    `longest` is the longest sequence's length that tables allow, `special` tells which ids it looks for, and
    `held_inputs` which inputs are positions and which are not, where that is proved.
    """

    longest: int | None
    special: Mapping[str, SpecialIds]
    held_inputs: Mapping[str, str]


def traits_of(graph: gs.Graph, analysis: Analysis) -> Traits:
    """The traits of a model; folding its graph would hide some, as look-ups of equal values have limits, too."""
    return Traits(
        longest=longest_sequence(graph, analysis),
        special=special_ids(graph),
        held_inputs=held_positions(graph, analysis),
    )
