# SPDX-License-Identifier: Apache-2.0
"""The sizes that CUDA graphs are captured for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from padfree.contract.metadata import Metadata, OutputInfo
from padfree.contract.names import PER_SEQUENCE, PREFIX

from ..errors import SessionError

Shape = tuple[int, ...]

SIZES_REMEMBERED = 4096
STEPS_AN_OCTAVE = 32
"""Sizes between a power of two and the next: rounding up wastes less than 1/32 of the tokens, 3.2 %."""
LEAST_STEP = 16
"""Tokens between two sizes of short runs: a GEMM's smallest tile has 64 rows, so these cost it nothing."""
LARGEST_FILLER = 128
"""Tokens, beside 1/16 of a run's own, by which the graph that serves it may be larger."""


@lru_cache(SIZES_REMEMBERED)
def token_bucket(tokens: int, max_tokens: int) -> int:
    """The smallest graph size for this many tokens: less than 1/32 larger, or less than LEAST_STEP; and allowed."""
    return _bucket(tokens, LEAST_STEP, max_tokens)


@lru_cache(SIZES_REMEMBERED)
def slot_bucket(slots: int, max_seq_len: int) -> int:
    """The same for slots of a padded axis, where filler costs: sizes up to 64 stand for themselves."""
    return _bucket(slots, 1, max_seq_len)


def _bucket(size: int, least_step: int, most: int) -> int:
    step = max(least_step, (1 << max(0, size - 1).bit_length()) // (2 * STEPS_AN_OCTAVE))
    return min(max(1, -(-size // step)) * step, most)


@lru_cache(SIZES_REMEMBERED)
def batch_bucket(sequences: int, max_batch: int) -> int:
    """The smallest power of two that holds the sequences, and is allowed; empty sequences cost next to nothing."""
    return min(1 << max(0, sequences - 1).bit_length(), max_batch)


class Sizes(NamedTuple):
    """What the shapes of a run follow from: tokens T, sequences B, and slots S where there is a padded axis.

    `prefixes` are the numbers in the input of shared prefixes: B, or 1 where no sequence has one; 0 without the input.
    """

    tokens: int
    sequences: int
    slots: int = 0
    prefixes: int = 0


def serves(graph: Sizes, sizes: Sizes) -> bool:
    """Whether a graph of these sizes takes a run of smaller ones at little cost.

    A run without a graph costs TensorRT milliseconds where sizes change, and so much filler less.
    """
    return (
        0 <= graph.tokens - sizes.tokens <= LARGEST_FILLER + sizes.tokens // 16
        and graph.sequences >= sizes.sequences
        and graph.slots == sizes.slots
        and (graph.prefixes > 1) == (sizes.prefixes > 1)
    )


class Buckets:
    """The sizes that runs of a packed engine are rounded up to: filler tokens and empty sequences at the end."""

    def __init__(self, metadata: Metadata) -> None:
        if metadata.engine is None:
            raise SessionError("CUDA graphs need a plan, this is the metadata of a model; build an engine")
        self._metadata = metadata
        self._profile = metadata.engine.profile
        names = {item.role: item.name for item in metadata.inputs}
        self._tokens, self._lens, self._slots = names["tokens"], names["seq_lens"], names.get("max_seqlen")
        self._prefix = names.get(PREFIX)

    def sizes(self, shapes: Mapping[str, Shape]) -> Sizes:
        """The sizes of a run with inputs of these shapes."""
        slots = 0 if self._slots is None else shapes[self._slots][0]
        prefixes = 0 if self._prefix is None else shapes[self._prefix][0]
        return Sizes(shapes[self._tokens][0], shapes[self._lens][0], slots, prefixes)

    def round_up(self, sizes: Sizes) -> Sizes:
        """The sizes of the graph that takes a run of these."""
        sequences = batch_bucket(sizes.sequences, self._profile.max_batch)
        return Sizes(
            token_bucket(sizes.tokens, self._profile.max_tokens),
            sequences,
            slot_bucket(sizes.slots, self._profile.max_seq_len) if sizes.slots else 0,
            sequences if sizes.prefixes > 1 else sizes.prefixes,
        )

    def input_shapes(self, sizes: Sizes) -> dict[str, Shape]:
        """The shapes of the inputs for these sizes."""
        of_sequences = dict.fromkeys(("seq_lens", PER_SEQUENCE), sizes.sequences)
        by_role = {"tokens": sizes.tokens, "max_seqlen": sizes.slots, PREFIX: sizes.prefixes, **of_sequences}
        return {item.name: (by_role[item.role], *item.trailing_shape) for item in self._metadata.inputs}

    def trim(self, output: OutputInfo, shape: Shape, sizes: Sizes) -> Shape:
        """The part of an output that belongs to a run of these sizes; `shape` is what its graph gives."""
        if output.rows_of is not None:
            return (sizes.tokens if output.rows_of == "T" else sizes.sequences, *shape[1:])
        sizes_by_letter = {"T": sizes.tokens, "B": sizes.sequences, "S": sizes.slots}
        leading = tuple(
            sizes_by_letter.get(str(size), graph_size) for size, graph_size in zip(output.sizes, shape, strict=False)
        )
        return (*leading, *shape[len(leading) :])
