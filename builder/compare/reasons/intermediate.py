# SPDX-License-Identifier: Apache-2.0
"""Intermediate tensors of the original and of a rewritten model, side by side: marked as outputs, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import NodeProto
from padfree.onnx_tools.analysis import BATCH, SLOTS
from padfree.runtime import Array, Metadata, packed_feeds
from padfree.runtime.request import read_request

from ...errors import BuildError
from ..batches import ComparedBatch
from ..insides import Inside, open_marked
from ..original import Original


@dataclass(frozen=True)
class Pair:
    """One tensor of the rewritten file, who makes it, and the tensor of the original that it stands for."""

    tensor: str
    origin: str
    node: NodeProto


@dataclass(frozen=True)
class Values:
    """The valid rows of a pair on one batch, [R, ...] each."""

    pair: Pair
    expected: Array
    actual: Array


class SideBySide:
    """The original in onnxruntime and a rewritten model, every float tensor that both have.

    Raises:
        BuildError: the two have no tensor in common.
    """

    def __init__(self, original: Original, inside: Inside, metadata: Metadata) -> None:
        self.original = original
        self._metadata = metadata
        self._inside = inside
        self.graph = inside.graph
        self.pairs = pair_tensors(original, inside, metadata)
        if not self.pairs:
            raise BuildError(
                "the two models have no tensor in common; rewrite the original with this version of padfree"
            )
        self._reference = open_marked(original.model, [pair.origin for pair in self.pairs])

    def run(self, batch: ComparedBatch) -> Iterator[Values]:
        """All pairs in the order in which the rewritten model makes them, on one batch; fetched in chunks."""
        feeds = rewritten_feeds(batch, self.original, self._metadata)
        for start in range(0, len(self.pairs), self._inside.chunk):
            chunk = self.pairs[start : start + self._inside.chunk]
            actual = self._inside.fetch([pair.tensor for pair in chunk], feeds)
            run = partial(self._reference.run, [pair.origin for pair in chunk])
            expected = self.original.sizes.run(run, dict(batch.feeds), [(BATCH, SLOTS)] * len(chunk))
            for pair, a, b in zip(chunk, expected, actual, strict=True):
                rows = _align(a, b, batch)
                if rows is not None:
                    yield Values(pair, *rows)


def pair_tensors(original: Original, inside: Inside, metadata: Metadata) -> list[Pair]:
    """Tensors that stand for the same numbers: by the map that the rewriter recorded, and those of the same name.

    Where the original's sizes are fixed, only those of the map, which are known to be [B, S, ...].
    """
    origins: Mapping[str, str] = metadata.raw.get("origins", {})
    tensors = {name for node in original.model.graph.node for name in node.output if name}
    return [
        Pair(name, origin, node)
        for node in inside.graph.node
        for name in node.output
        if name in inside.tensors and (origin := origins.get(name, "" if original.sizes else name)) in tensors
    ]


def rewritten_feeds(batch: ComparedBatch, original: Original, metadata: Metadata) -> dict[str, Array]:
    """A batch as the rewritten model's inputs."""
    if metadata.interface == "padded":
        return {item.name: batch.feeds[item.name].astype(item.dtype) for item in metadata.inputs}
    ragged = read_request(batch.request(original), metadata)
    return packed_feeds(ragged, metadata)


def _align(expected: Array, actual: Array, batch: ComparedBatch) -> tuple[Array, Array] | None:
    """The valid rows of both; None for tensors that are no numbers, or that have no row per token or per sequence."""
    if expected.dtype.kind != "f" or actual.dtype.kind != "f" or not expected.ndim or not actual.ndim:
        return None
    B, S = batch.mask.shape
    T = int(batch.mask.sum())
    if expected.shape[:2] != (B, S) and expected.shape[:1] == (B * S,) and actual.shape[:1] == (T,):
        expected = expected.reshape(B, S, *expected.shape[1:])
    if expected.shape[:2] == (B, S):
        rows = expected[batch.mask]
        if actual.shape == expected.shape:
            return rows, actual[batch.mask]
        return (rows, actual[: len(rows)]) if actual.shape[1:] == rows.shape[1:] and len(actual) >= T else None
    if expected.shape == actual.shape and expected.shape[0] == B:
        rows_with_tokens = np.flatnonzero(batch.seq_lens)
        return expected[rows_with_tokens], actual[rows_with_tokens]
    return None
