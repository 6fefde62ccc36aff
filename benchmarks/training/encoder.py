# SPDX-License-Identifier: Apache-2.0
"""An encoder of BERT-base's shape in PyTorch that trains on packed tokens: no padding, varlen attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from padfree.runtime import bounds_of
from torch import nn
from torch.nn.attention.varlen import varlen_attn

LAYERS, HIDDEN, HEADS, INNER, VOCABULARY, POSITIONS = 12, 768, 12, 3072, 30_522, 512


class Batch(NamedTuple):
    """Packed tokens on the GPU: ids and positions [T], cu_seqlens [B+1], the longest length."""

    ids: Any
    positions: Any
    offsets: Any
    longest: int


def packed_batch(lengths: npt.NDArray[np.int64], *, seed: int) -> Batch:
    """A batch of sequences with these lengths and random ids."""
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, int(lengths.sum()))
    positions = np.concatenate([np.arange(length) for length in lengths])
    offsets = bounds_of(lengths).astype(np.int32)
    on_gpu = [torch.from_numpy(array).pin_memory().cuda(non_blocking=True) for array in (ids, positions, offsets)]
    return Batch(on_gpu[0], on_gpu[1], on_gpu[2], int(lengths.max()))


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward, both post-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, x: Any, batch: Batch) -> Any:
        """Maps tokens [T, E] to tokens."""
        q, k, v = (part.contiguous() for part in self.qkv(x).view(-1, 3, HEADS, HIDDEN // HEADS).unbind(1))
        offsets, longest = batch.offsets, batch.longest
        mixed = varlen_attn(q, k, v, offsets, offsets, longest, longest).reshape(-1, HIDDEN)
        x = self.first(x + self.out(mixed))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):  # type: ignore[misc]
    """Embeddings, layers, and a head that gives one number for every sequence's first token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, batch: Batch) -> Any:
        """One number per sequence, [B, 1]."""
        x = self.norm(self.words(batch.ids) + self.positions(batch.positions))
        for layer in self.layers:
            x = layer(x, batch)
        return self.head(x[batch.offsets[:-1]])


def loss_of(model: Any, batch: Batch) -> Any:
    """A loss in bfloat16."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(batch).float().square().mean()
