# SPDX-License-Identifier: Apache-2.0
"""The numbers of positions or sizes that a tensor holds, for sequences of any length without padding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from .computation import Computation, computation_of
from .limits import limit_of
from .once import once
from .symbolic import Analysis

# How many ids are tried, each throughout a sequence: positions that skip the padding id are counted in the other
# sequences. An input that indexes no table, such as a mask, is 0 in half of the sequences and 1 in the rest.
_IDS = 8


class ComputedNumbers:
    """The numbers of a tensor, or of a column of its last axis, as a function of the sequences' length.

    `key` is the same for tensors that are computed alike: every layer may repeat the same computation.
    """

    def __init__(self, computation: Computation, limits: Mapping[str, int | None], column: int | None) -> None:
        self.key = computation.key
        self._computation = computation
        self._limits = limits  # input -> how many values it takes; None where it indexes no table
        self._column = column
        self._bounds: dict[int, tuple[int, int]] = {}

    def __call__(self, length: int) -> tuple[int, int]:
        """The smallest and the largest number. Raises NotComputedError."""
        return once(self._bounds, length, lambda: self._run(length))

    def _run(self, length: int) -> tuple[int, int]:
        batch = 2 * _IDS if self._limits else 1
        row = np.arange(batch)
        feeds = {}
        for name, limit in self._limits.items():
            column = row // _IDS if limit is None else np.minimum(row % _IDS, limit - 1)
            feeds[name] = np.broadcast_to(column[:, None], (batch, length))
        values = self._computation.run(batch, length, feeds)
        numbers = values if self._column is None else values[..., self._column]
        return int(numbers.min(initial=0)), int(numbers.max(initial=0))


def computed_numbers(
    graph: gs.Graph, analysis: Analysis, tensor: gs.Tensor, column: int | None
) -> ComputedNumbers | None:
    """The numbers of an integer tensor of a sorted graph.

    None where they do not come from lengths, ids and masks: where nothing depends on these, or activations take part.
    """
    computation = computation_of(graph, analysis, tensor, tables=False)
    if computation is None:
        return None
    return ComputedNumbers(computation, {name: limit_of(graph, name) for name in computation.tokens}, column)
