# SPDX-License-Identifier: Apache-2.0
"""padfree.training: batches of equal work for all ranks of a training on sequences of unequal lengths."""

from .errors import SamplerError
from .imbalance import imbalances
from .sampler import BalancedBatchSampler, JoinedBatches, RankBatches
from .trainers import for_sentence_transformers, world_size

__all__ = [
    "BalancedBatchSampler",
    "JoinedBatches",
    "RankBatches",
    "SamplerError",
    "for_sentence_transformers",
    "imbalances",
    "world_size",
]
