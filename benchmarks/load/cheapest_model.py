# SPDX-License-Identifier: Apache-2.0
"""A padded engine in Triton's Python backend, its runs chosen by dynamic programming over a measured cost table.

The best that is known for engines that pad (TurboTransformers, arXiv:2010.05680): the sequences of a call are sorted by
length and cut into the runs whose costs add up to the least. Everything else is EncoderModel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from padfree.runtime.batching import CostTable, partition, read_costs
from padfree.runtime.feeds import split_outputs
from padfree.runtime.request import Ragged
from padfree.runtime.triton.answers import NO_ROW, Answerer
from padfree.runtime.triton.answers import _Results as Results
from padfree.runtime.triton.encoder import EncoderModel

COSTS = "costs.json"


class CheapestAnswerer(Answerer):
    """Cuts calls where it costs least."""

    costs: CostTable

    def _run(self, batch: Ragged) -> Results:
        rows = {name: [NO_ROW] * batch.seq_lens.size for name in self._layouts}
        for run in partition(batch.seq_lens.tolist(), self.costs, self._budget):
            part = pick(batch, run)
            outputs = split_outputs(self._session.backend.run(self._session.feeds(part)), part, self._metadata)
            self._on_run(part)
            for name, results in outputs.items():
                for sequence, row in zip(run, results, strict=True):
                    rows[name][sequence] = row
        return Results(rows, {})


class TritonPythonModel(EncoderModel):
    """EncoderModel with CheapestAnswerer; the cost table lies beside the plan."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Opens the plan and the cost table."""
        super().initialize(args)
        answerer = CheapestAnswerer(self._session, self._session.budget, self._metrics.ran)
        answerer.costs = read_costs(Path(args["model_repository"]) / args["model_version"] / COSTS)
        self._answerer = answerer


def pick(batch: Ragged, sequences: list[int]) -> Ragged:
    """The batch of some sequences, in the order given."""
    starts = np.concatenate([[0], np.cumsum(batch.seq_lens)])
    at = np.concatenate([np.arange(starts[sequence], starts[sequence + 1]) for sequence in sequences])
    return Ragged({name: values[at] for name, values in batch.tokens.items()}, batch.seq_lens[sequences])
