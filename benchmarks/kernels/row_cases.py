# SPDX-License-Identifier: Apache-2.0
"""The cases of the benchmark of memory-bound kernels: norms, embedding, pack, unpack, pooling, index of slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from tests.support.launchers import DATA_TYPES, POOL_MODES, Float, Int64, call

DEVICE = "cuda"
DTYPE = torch.float16
BYTES_PER_ELEMENT = 2
EPSILON = 1e-5
SEQUENCE = 512
"""Padded length; sequences have it for pooling, and 0.2 to 1 times as much for pack and unpack."""
VOCABULARY = 30522


@dataclass(frozen=True)
class Work:
    """One input set on the GPU: `run` enqueues the kernel and fills the output, `peer` is PyTorch's way.

    `peer` returns the same values; num_bytes counts every byte that has to be read or written once.
    """

    run: Callable[[], None]
    peer: Callable[[], torch.Tensor]
    output: torch.Tensor
    num_bytes: int


@dataclass(frozen=True)
class Case:
    """A kernel at a size; `make` gives an input set for a seed. Targets hold for 16k tokens, past the L2 cache."""

    name: str
    tokens: int
    width: int
    make: Callable[[int], Work]


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Random fp16 values of this shape."""
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(shape, device=DEVICE, generator=generator, dtype=torch.float32).to(DTYPE)


def int32(values: torch.Tensor) -> torch.Tensor:
    """Integers as the kernels read them."""
    return values.to(DEVICE, torch.int32)


def row_bytes(rows: int, width: int) -> int:
    """The bytes of `rows` rows in fp16."""
    return rows * width * BYTES_PER_ELEMENT


def layer_norm(tokens: int, width: int, *, bias: bool, residual: bool, total: bool, rms: bool) -> Callable[[int], Work]:
    """Norm of x + bias + residual; `total` also writes the sum."""

    def make(seed: int) -> Work:
        x, gamma, beta = normal(seed, tokens, width), normal(seed + 1, width), normal(seed + 2, width)
        vector = normal(seed + 3, width) if bias else None
        other = normal(seed + 4, tokens, width) if residual else None
        y, sums = torch.empty_like(x), torch.empty_like(x) if total else None

        def run() -> None:
            call(
                "padfreeLayerNorm", x, vector, other, gamma, None if rms else beta, y, sums, Int64(tokens), width,
                Float(EPSILON), int(rms), DATA_TYPES[DTYPE],
            )  # fmt: skip

        def peer() -> torch.Tensor:
            value = x if vector is None else x + vector
            value = value if other is None else value + other
            if rms:
                return functional.rms_norm(value, (width,), gamma, EPSILON)
            return functional.layer_norm(value, (width,), gamma, beta, EPSILON)

        return Work(run, peer, y, row_bytes(tokens, width) * (2 + residual + total))

    return make


def embedding(tokens: int, width: int) -> Callable[[int], Work]:
    """Norm of word, position and type embeddings, for sequences of SEQUENCE tokens."""

    def make(seed: int) -> Work:
        generator = torch.Generator().manual_seed(seed)
        words, positions, types = normal(seed, VOCABULARY, width), normal(1, SEQUENCE, width), normal(2, 2, width)
        gamma, beta = normal(3, width), normal(4, width)
        ids = torch.randint(0, VOCABULARY, (tokens,), generator=generator)
        kinds = int32(torch.randint(0, 2, (tokens,), generator=generator))
        counted = (torch.arange(tokens) % SEQUENCE).to(DEVICE)
        starts = [*range(0, tokens, SEQUENCE), tokens]
        cu_seqlens, used = int32(torch.tensor(starts)), len(ids.unique()) + min(tokens, SEQUENCE)
        ids = int32(ids)
        y = torch.empty(tokens, width, device=DEVICE, dtype=DTYPE)

        def run() -> None:
            call(
                "padfreeEmbedding", ids, kinds, None, cu_seqlens, words, positions, types, gamma, beta, y, tokens,
                len(starts) - 1, width, VOCABULARY, SEQUENCE, 2, 0, Float(EPSILON), DATA_TYPES[DTYPE],
            )  # fmt: skip

        def peer() -> torch.Tensor:
            value = functional.embedding(ids, words) + functional.embedding(counted, positions)
            value = value + functional.embedding(kinds, types)
            return functional.layer_norm(value, (width,), gamma, beta, EPSILON)

        return Work(run, peer, y, row_bytes(used + tokens, width) + 8 * tokens)

    return make


def kept_slots(tokens: int, seed: int) -> tuple[torch.Tensor, int]:
    """Slots b * SEQUENCE + s of `tokens` tokens in ragged sequences, and how many slots there are."""
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        length = int(torch.randint(SEQUENCE // 5, SEQUENCE + 1, (1,), generator=generator))
        lengths.append(min(length, tokens - sum(lengths)))
    slots = [torch.arange(length) + b * SEQUENCE for b, length in enumerate(lengths)]
    return torch.cat(slots), len(lengths) * SEQUENCE


def pack(tokens: int, width: int) -> Callable[[int], Work]:
    """Gathers the kept rows."""

    def make(seed: int) -> Work:
        kept, slots = kept_slots(tokens, seed)
        index, x = int32(kept), normal(seed, slots, width)
        y = torch.empty(tokens, width, device=DEVICE, dtype=DTYPE)

        def run() -> None:
            call("padfreePack", x, index, y, tokens, Int64(slots), Int64(width * BYTES_PER_ELEMENT))

        return Work(run, lambda: x.index_select(0, index), y, row_bytes(2 * tokens, width) + 4 * tokens)

    return make


def unpack(tokens: int, width: int) -> Callable[[int], Work]:
    """Scatters rows to their slots, with zeros elsewhere."""

    def make(seed: int) -> Work:
        kept, slots = kept_slots(tokens, seed)
        index, kept, packed = int32(kept), kept.to(DEVICE), normal(seed, tokens, width)
        y = torch.empty(slots, width, device=DEVICE, dtype=DTYPE)

        def run() -> None:
            call("padfreeUnpack", packed, index, y, tokens, Int64(slots), Int64(width * BYTES_PER_ELEMENT))

        def peer() -> torch.Tensor:
            return torch.zeros_like(y).index_copy_(0, kept, packed)

        return Work(run, peer, y, row_bytes(tokens + slots, width) + 4 * tokens)

    return make


def mean_pooling(tokens: int, width: int) -> Callable[[int], Work]:
    """Makes one row per sequence of SEQUENCE tokens."""

    def make(seed: int) -> Work:
        x, batch = normal(seed, tokens, width), tokens // SEQUENCE
        cu_seqlens = int32(torch.arange(0, tokens + 1, SEQUENCE))
        y = torch.empty(batch, width, device=DEVICE, dtype=DTYPE)

        def run() -> None:
            call("padfreePool", x, cu_seqlens, y, tokens, batch, width, POOL_MODES["mean"], 0, DATA_TYPES[DTYPE])

        return Work(run, lambda: x.view(batch, SEQUENCE, width).mean(1), y, row_bytes(tokens + batch, width))

    return make


def gather(tokens: int, width: int) -> Callable[[int], Work]:
    """Gathers word rows by random ids, which is the least that PadfreeEmbedding has to do."""

    def make(seed: int) -> Work:
        generator = torch.Generator().manual_seed(seed)
        ids, words = torch.randint(0, VOCABULARY, (tokens,), generator=generator), normal(seed, VOCABULARY, width)
        used, ids = len(ids.unique()), int32(ids)
        y = torch.empty(tokens, width, device=DEVICE, dtype=DTYPE)

        def run() -> None:
            call("padfreePack", words, ids, y, tokens, Int64(VOCABULARY), Int64(width * BYTES_PER_ELEMENT))

        return Work(run, lambda: words.index_select(0, ids), y, row_bytes(used + tokens, width) + 4 * tokens)

    return make


def pack_ids(tokens: int) -> Callable[[int], Work]:
    """Gathers the kept ids, as a padded engine does first."""

    def make(seed: int) -> Work:
        kept, slots = kept_slots(tokens, seed)
        index, ids, y = int32(kept), int32(torch.arange(slots)), int32(torch.zeros(tokens))

        def run() -> None:
            call("padfreePack", ids, index, y, tokens, Int64(slots), Int64(4))

        return Work(run, lambda: ids.index_select(0, index), y, 12 * tokens)

    return make


def index(tokens: int) -> Callable[[int], Work]:
    """Makes the list of kept slots from the mask."""

    def make(seed: int) -> Work:
        kept, slots = kept_slots(tokens, seed)
        batch = slots // SEQUENCE
        mask = torch.zeros(slots, dtype=torch.int32)
        mask[kept] = 1
        mask, numbers = mask.to(DEVICE), int32(torch.arange(slots))
        y, seq_lens, count = int32(torch.zeros(slots)), int32(torch.zeros(batch)), int32(torch.zeros(1))

        def run() -> None:
            call("padfreeIndex", mask, y, seq_lens, count, batch, SEQUENCE)

        def peer() -> torch.Tensor:
            position = torch.where(mask != 0, mask.cumsum(0) - 1, slots)  # dropped slots go after the list
            return torch.zeros(slots + 1, device=DEVICE, dtype=torch.int32).scatter_(0, position, numbers)[:tokens]

        return Work(run, peer, y[:tokens], 4 * (slots + batch + tokens))

    return make


def all_cases() -> tuple[Case, ...]:
    """16k tokens, which come from memory, then the sizes of one batch, which engines find in the L2 cache."""
    cases = []
    for width in (384, 768, 1024, 4096):
        options = {"bias": True, "residual": True, "total": False, "rms": False}
        cases.append(("bias + residual + layer norm", 16384, width, layer_norm(16384, width, **options)))
    for width in (768, 1024):
        plain = layer_norm(16384, width, bias=False, residual=False, total=False, rms=False)
        summed = layer_norm(16384, width, bias=False, residual=True, total=True, rms=True)
        cases += [
            ("layer norm", 16384, width, plain),
            ("residual + RMS norm, with sum", 16384, width, summed),
            ("embedding + layer norm", 16384, width, embedding(16384, width)),
            ("gather of word rows alone", 16384, width, gather(16384, width)),
            ("pack", 16384, width, pack(16384, width)),
            ("unpack", 16384, width, unpack(16384, width)),
            ("mean pooling", 16384, width, mean_pooling(16384, width)),
        ]
    for tokens in (4802, 1403, 128, 1):
        both = layer_norm(tokens, 768, bias=True, residual=True, total=False, rms=False)
        cases += [
            ("bias + residual + layer norm", tokens, 768, both),
            ("embedding + layer norm", tokens, 768, embedding(tokens, 768)),
        ]
    for tokens in (4802, 128):
        cases += [
            ("index", tokens, 1, index(tokens)),
            ("pack of ids", tokens, 1, pack_ids(tokens)),
            ("unpack", tokens, 768, unpack(tokens, 768)),
        ]
    return tuple(
        Case(f"{name}, T {tokens}{f', E {width}' if width > 1 else ''}", tokens, width, make)
        for name, tokens, width, make in cases
    )
