"""Encoder layers on two batches in turn, over and over, give the same bits each time.

Rare faults (a warp that comes too late or too early) show here, especially in a library built with
-DPADFREE_PERTURB=ON, or while other processes use the GPU.
"""

# SPDX-License-Identifier: Apache-2.0
import time
from dataclasses import dataclass

import pytest
import torch

from tests.support.launchers import (
    DATA_TYPES,
    Float,
    Int64,
    attention,
    call,
    has_hopper_kernels,
    linear,
    schedule,
    task_list_entries,
)

from .cases import DEVICE, generator

if torch.cuda.is_available() and not has_hopper_kernels():
    pytest.skip("PadfreeLinear needs a Hopper GPU", allow_module_level=True)

WIDTH, INNER, LONGEST = 768, 3072, 512
LAYERS = 2
SECONDS = 4.0
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Batch:
    """Sequences and their hidden states x [T, WIDTH]."""

    seq_lens: torch.Tensor
    x: torch.Tensor


def draw(tokens: int, seed: int) -> Batch:
    """Draws lengths as requests have them: mostly short, a few of LONGEST."""
    source = torch.Generator().manual_seed(seed)
    lengths = torch.empty(tokens).log_normal_(4.2, 0.8, generator=source).round().clamp(3, LONGEST).int()
    lengths = lengths[lengths.cumsum(0) <= tokens]
    x = torch.randn(int(lengths.sum()), WIDTH, device=DEVICE, generator=generator(seed))
    return Batch(lengths.to(DEVICE), x.half())


class Encoder:
    """LAYERS layers with a buffer for every intermediate result; both batches use the buffers in turn."""

    def __init__(self, batches: list[Batch], heads: int) -> None:
        self.heads = heads

        def weight(rows: int, columns: int, seed: int) -> torch.Tensor:
            return (torch.randn(rows, columns, device=DEVICE, generator=generator(seed)) * rows**-0.5).half()

        def room(width: int) -> torch.Tensor:
            return torch.full((max(len(batch.x) for batch in batches), width), float("nan"), device=DEVICE).half()

        widths = {"qkv": 3 * WIDTH, "inner": INNER} | dict.fromkeys(("attended", "added", "mixed", "out", "y"), WIDTH)
        self.buffers = [{name: room(width) for name, width in widths.items()} for _ in range(LAYERS)]
        self.weights = [
            {
                "qkv": weight(WIDTH, 3 * WIDTH, 10 * i + 1),
                "added": weight(WIDTH, WIDTH, 10 * i + 2),
                "inner": weight(WIDTH, INNER, 10 * i + 3),
                "out": weight(INNER, WIDTH, 10 * i + 4),
            }
            for i in range(LAYERS)
        ]
        self.bias = torch.randn(INNER, device=DEVICE, generator=generator(5)).half()
        self.gamma, self.beta = torch.ones(WIDTH, device=DEVICE).half(), torch.zeros(WIDTH, device=DEVICE).half()
        sizes = [(len(batch.x), len(batch.seq_lens)) for batch in batches]
        self.cu_seqlens = torch.zeros(max(b for _, b in sizes) + 1, device=DEVICE, dtype=torch.int32)
        entries = max(task_list_entries(tokens, b, heads) for tokens, b in sizes)
        self.tasks = torch.zeros(entries, 4, device=DEVICE, dtype=torch.int32)

    def norm(self, x: torch.Tensor, y: torch.Tensor) -> None:
        call(
            "padfreeLayerNorm", x, None, None, self.gamma, self.beta, y, None, Int64(len(x)), WIDTH, Float(1e-5), 0,
            DATA_TYPES[torch.float16],
        )  # fmt: skip

    def run(self, batch: Batch) -> Tensors:
        """All computed tensors, by layer and name, in order."""
        tokens, x, results = len(batch.x), batch.x, {}
        cu_seqlens = self.cu_seqlens[: len(batch.seq_lens) + 1]
        schedule(batch.seq_lens, cu_seqlens, tokens, tasks=self.tasks, heads=self.heads)
        for i, (weights, buffers) in enumerate(zip(self.weights, self.buffers, strict=True)):
            at = {name: buffer[:tokens] for name, buffer in buffers.items()}
            linear(x, weights["qkv"], at["qkv"], bias=self.bias[: 3 * WIDTH])
            operands = at["qkv"].view(tokens, 3, self.heads, -1).unbind(1)
            attention(
                operands,
                cu_seqlens,
                at["attended"],
                scale=(WIDTH / self.heads) ** -0.5,
                max_seq_len=LONGEST,
                tasks=self.tasks,
            )
            linear(at["attended"], weights["added"], at["added"], bias=self.bias[:WIDTH], residual=x)
            self.norm(at["added"], at["mixed"])
            linear(at["mixed"], weights["inner"], at["inner"], bias=self.bias, activation="gelu")
            linear(at["inner"], weights["out"], at["out"], bias=self.bias[:WIDTH], residual=at["mixed"])
            self.norm(at["out"], at["y"])
            x = at["y"]
            results |= {f"layer {i}, {name}": value for name, value in at.items()}
        return results


@pytest.mark.parametrize("heads", [12, 24])
@pytest.mark.parametrize("tokens", [700, 6000, 16000])
def test_layers_give_the_same_bits_every_time(tokens: int, heads: int) -> None:
    batches = [draw(tokens, seed) for seed in (1, 2)]
    encoder = Encoder(batches, heads)
    expected = []
    for batch in batches:
        expected.append({name: value.clone() for name, value in encoder.run(batch).items()})
        assert all(bool(value.isfinite().all()) for value in expected[-1].values())
    end = time.monotonic() + SECONDS
    runs = 0
    while time.monotonic() < end:
        for batch, right in zip(batches, expected, strict=True):
            results = encoder.run(batch)
            different = {
                name: (value != right[name]).any(1).nonzero().flatten().tolist()[:8]
                for name, value in results.items()
                if not torch.equal(value, right[name])
            }
            assert not different, f"run {runs}: rows that differ {different}"
            runs += 1
