# SPDX-License-Identifier: Apache-2.0
"""Intermediate tensors of the original and of a rewritten file, side by side: marked as outputs, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto
from padfree.onnx_tools import load_model, without_functions
from padfree.onnx_tools.rounding import with_rounding
from padfree.onnx_tools.sessions import open_session
from padfree.runtime import Metadata
from padfree.runtime.feeds import packed_feeds
from padfree.runtime.request import read_request

from ..errors import BuildError
from .batches import Batch
from .original import Original

Array = npt.NDArray[Any]

CHUNK = 16  # tensors that are fetched at a time: 16 x [4096, 3072] fp32 are 0.8 GB


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
    wanted: Array
    found: Array


class SideBySide:
    """The original and a rewritten file in onnxruntime, every tensor that both have marked as an output.

    Half precision files compute in fp32 and round every tensor where it is made.

    Raises:
        BuildError: the two have no tensor in common.
    """

    def __init__(self, original: Original, rewritten: ModelProto, metadata: Metadata) -> None:
        self._original = original
        self._metadata = metadata
        self.graph = without_functions(rewritten).graph
        self.pairs = pair_tensors(original, rewritten, metadata)
        if not self.pairs:
            raise BuildError(
                "the two models have no tensor in common; rewrite the original with this version of padfree"
            )
        model = rewritten if metadata.precision == "fp32" else with_rounding(rewritten, metadata.precision)
        self._sessions = (
            _session(original.model, [pair.origin for pair in self.pairs]),
            _session(model, [pair.tensor for pair in self.pairs]),
        )

    def run(self, batch: Batch) -> Iterator[Values]:
        """All pairs in the order in which the rewritten file makes them, on one batch; fetched in chunks."""
        feeds = (dict(batch.feeds), rewritten_feeds(batch, self._original, self._metadata))
        for start in range(0, len(self.pairs), CHUNK):
            chunk = self.pairs[start : start + CHUNK]
            names = ([pair.origin for pair in chunk], [pair.tensor for pair in chunk])
            run = partial(self._sessions[0].run, names[0])
            wanted = self._original.sizes.run(run, feeds[0], [True] * len(chunk))
            found = self._sessions[1].run(names[1], feeds[1])
            for pair, a, b in zip(chunk, wanted, found, strict=True):
                rows = _aligned(a, b, batch)
                if rows is not None:
                    yield Values(pair, *rows)


def open_side_by_side(original: Original, path: Path, metadata: Metadata) -> SideBySide:
    """Opens a rewritten file beside its original."""
    return SideBySide(original, load_model(path), metadata)


def pair_tensors(original: Original, rewritten: ModelProto, metadata: Metadata) -> list[Pair]:
    """Tensors that stand for the same numbers: by the map that the rewriter recorded, and those of the same name.

    Where the original's sizes are fixed, only those of the map, which are known to be [B, S, ...].
    """
    origins: Mapping[str, str] = metadata.raw.get("origins", {})
    made = {name for node in original.model.graph.node for name in node.output}
    return [
        Pair(name, origin, node)
        for node in without_functions(rewritten).graph.node
        for name in node.output
        if (origin := origins.get(name, "" if original.sizes else name)) in made and name
    ]


def rewritten_feeds(batch: Batch, original: Original, metadata: Metadata) -> dict[str, Array]:
    """A batch as the rewritten model's inputs."""
    if metadata.interface == "padded":
        return {item.name: batch.feeds[item.name].astype(item.dtype) for item in metadata.inputs}
    ragged = read_request({item.name: batch.rows(item.name) for item in original.tokens}, metadata)
    return packed_feeds(ragged, metadata)


def _session(model: ModelProto, names: Sequence[str]) -> Any:
    """A session with more outputs; one execution order of all nodes, nothing fused."""
    marked = ModelProto()
    marked.CopyFrom(model)
    there = {value.name for value in marked.graph.output}
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in there)
    return open_session(marked, optimize=False)


def _aligned(wanted: Array, found: Array, batch: Batch) -> tuple[Array, Array] | None:
    """The valid rows of both; None for tensors that are no numbers, or that have no row a token or a sequence."""
    if wanted.dtype.kind != "f" or found.dtype.kind != "f" or not wanted.ndim or not found.ndim:
        return None
    B, S = batch.mask.shape
    T = int(batch.mask.sum())
    if wanted.shape[:2] != (B, S) and wanted.shape[:1] == (B * S,) and found.shape[:1] == (T,):
        wanted = wanted.reshape(B, S, *wanted.shape[1:])
    if wanted.shape[:2] == (B, S):
        rows = wanted[batch.mask]
        if found.shape == wanted.shape:
            return rows, found[batch.mask]
        return (rows, found[: len(rows)]) if found.shape[1:] == rows.shape[1:] and len(found) >= T else None
    if wanted.shape == found.shape and wanted.shape[0] == B:
        filled = np.flatnonzero(batch.seq_lens)
        return wanted[filled], found[filled]
    return None
