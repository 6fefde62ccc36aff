# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts (arXiv 2101.03961): a router chooses which of several feed-forward networks count for a token.

All experts are computed, and those not chosen multiplied by 0: every token has the same GEMMs, as packing needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .graph import EncoderGraph
from .layers import Activation
from .tensors import Weight


@dataclass(frozen=True)
class Experts:
    """The sum of active(x @ up_i^T) @ down_i over the chosen experts, each times its probability, and a bias.

    Attributes:
        router: [X, E], without a bias.
        up: [X * inner, E], one expert's rows after the other's.
        active: the activation.
        down: [X * inner, E].
        bias: [E].
        expert_count: how many experts count for a token.
    """

    router: Weight
    up: Weight
    active: Activation
    down: Weight
    bias: Weight
    expert_count: int

    def apply(self, graph: EncoderGraph, x: str) -> str:
        """The mixture of x [B, S, E]."""
        with graph.scope("experts"):
            count, inner = self.router.shape[0], self.up.shape[0] // self.router.shape[0]
            share = graph.unsqueeze(self._shares(graph, x), 3)
            hidden = self.active(graph, graph.op("MatMul", x, graph.weight(self.up.transpose())))
            each = graph.op("Mul", graph.reshape(hidden, 0, 0, count, inner), share)
            rows = graph.reshape(each, 0, 0, count * inner)
            return graph.op("Add", graph.op("MatMul", rows, graph.weight(self.down)), graph.weight(self.bias))

    def _shares(self, graph: EncoderGraph, x: str) -> str:
        """The probabilities [B, S, X] of the chosen experts, and 0 for the others."""
        shares = graph.op("Softmax", graph.op("MatMul", x, graph.weight(self.router.transpose())), axis=-1)
        remaining_shares, least = shares, graph.op("ReduceMax", shares, axes=[-1], keepdims=1)
        for _ in range(self.expert_count - 1):
            remaining_shares = graph.op("Where", graph.op("Less", remaining_shares, least), remaining_shares, 0.0)
            least = graph.op("ReduceMax", remaining_shares, axes=[-1], keepdims=1)
        return graph.op("Where", graph.op("Less", shares, least), 0.0, shares)
