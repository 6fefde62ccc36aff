# SPDX-License-Identifier: Apache-2.0
"""Inputs that a model has once for a whole batch: sequences with the same values run together."""

from __future__ import annotations

import numpy as np
from padfree.contract.metadata import Metadata

from .errors import SessionError
from .request import RaggedBatch
from .rows import Array


def groups_of_shared(ragged: RaggedBatch, metadata: Metadata) -> list[list[int]]:
    """The sequences, by number, that have the same values of all inputs that a run has once; mostly one group."""
    names = metadata.shared_inputs
    if not names or not ragged.seq_lens.size:
        return [list(range(ragged.seq_lens.size))]
    groups: dict[bytes, list[int]] = {}
    for at in range(ragged.seq_lens.size):
        key = b"".join(ragged.of_sequences[name][at].tobytes() for name in names)
        groups.setdefault(key, []).append(at)
    return list(groups.values())


def check_shared(ragged: RaggedBatch, metadata: Metadata) -> None:
    """Raises SessionError where sequences of one run differ in an input that the model has once for all of them."""
    for name in metadata.shared_inputs:
        check_same_rows(name, ragged.of_sequences[name])


def check_same_rows(name: str, values: Array) -> None:
    """Raises SessionError where rows differ of an input that the model has once for a whole run."""
    other = np.flatnonzero((values != values[:1]).reshape(len(values), -1).any(axis=1))
    if other.size:
        at = int(other[0])
        raise SessionError(
            f"'{name}' is {values[0].tolist()} for sequence 0 and {values[at].tolist()} for sequence {at}: the model "
            "has one for a whole run; run sequences with other values by themselves, as Session.run does"
        )
