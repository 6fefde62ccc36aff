# SPDX-License-Identifier: Apache-2.0
"""Biases of scores that come from distances and keys."""

from .disentangled_tables import DisentangledTables, DistanceTables, GatheredScores, gathered_in
from .distances import DISTANCE, Bias, Biases, at_distance, by_distance
from .key_biases import is_of_keys

__all__ = [
    "DISTANCE",
    "Bias",
    "Biases",
    "DisentangledTables",
    "DistanceTables",
    "GatheredScores",
    "at_distance",
    "by_distance",
    "gathered_in",
    "is_of_keys",
]
