# SPDX-License-Identifier: Apache-2.0
"""What the kernels of an encoder layer must take on an H200, by counting: bytes, products, exponentials, launches.

    python -m benchmarks.engine.layer_counts --hidden 384 --heads 12

One line a kernel and batch. A kernel takes at least the longest of its bytes at the rate of the memory, its products at
that of the tensor cores, and its exponentials at that of the special-function units, and a launch beside it. Inputs
that the L2 cache still holds come faster than that; weights are counted once per batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from padfree.builder.peers.batch import draw_lengths
from padfree.onnx_tools.cost import Lengths

ELEMENT_BYTES = 2
MULTIPROCESSORS, CLOCK_HZ = 132, 1.755e9
MEMORY_BYTES_PER_S = 4.3e12
OPERATIONS_PER_CLOCK = 4096  # of a multiprocessor's tensor cores
EXPONENTIALS_PER_CLOCK = 16  # of its special-function units
LAUNCH_US = 1.2  # with dependent launch, inside a CUDA graph (docs/internals/attention.md)
BATCHES = (
    Lengths(1, 32, 32),
    Lengths(1, 128, 128),
    Lengths(16, 87.7, 146),
    Lengths(16, 300.1, 500),
    Lengths(32, 512, 512),
)
"""Of 32, 128, 1403, 4802 and 16384 tokens."""


@dataclass(frozen=True)
class Layer:
    """An encoder layer: E, H and the width of its inner features."""

    hidden: int
    heads: int
    inner: int


@dataclass(frozen=True)
class Counts:
    """What one kernel has to do: bytes from and to memory, multiplications and additions, exponentials."""

    kernel: str
    bytes_moved: int
    operations: int
    exponentials: int = 0

    @property
    def least_us(self) -> dict[str, float]:
        """The least time of each, in us."""
        clocks = MULTIPROCESSORS * CLOCK_HZ
        return {
            "bytes": 1e6 * self.bytes_moved / MEMORY_BYTES_PER_S,
            "products": 1e6 * self.operations / (OPERATIONS_PER_CLOCK * clocks),
            "exponentials": 1e6 * self.exponentials / (EXPONENTIALS_PER_CLOCK * clocks),
        }

    @property
    def bound_us(self) -> float:
        """The longest of these."""
        return max(self.least_us.values())


def product(kernel: str, tokens: int, depth: int, features: int, *, residual: bool = False) -> Counts:
    """A product [tokens, depth] x [depth, features]; residual: rows of the result's size are read as well."""
    elements = tokens * depth + depth * features + tokens * features * (2 if residual else 1)
    return Counts(kernel, ELEMENT_BYTES * elements, 2 * tokens * depth * features)


def layer_counts(layer: Layer, lengths: Sequence[int]) -> list[Counts]:
    """The five kernels of a layer whose norms are folded into its products, for sequences of these lengths."""
    tokens, hidden, pairs = sum(lengths), layer.hidden, sum(length * length for length in lengths)
    return [
        product("QKV", tokens, hidden, 3 * hidden),
        Counts("attention", ELEMENT_BYTES * 4 * tokens * hidden, 4 * pairs * hidden, pairs * layer.heads),
        product("out", tokens, hidden, hidden, residual=True),
        product("up", tokens, hidden, layer.inner),
        product("down", tokens, layer.inner, hidden, residual=True),
    ]


def report(layer: Layer, batch: Lengths) -> list[str]:
    """The lines of one batch, with their sum."""
    lengths = draw_lengths(batch)
    counts = layer_counts(layer, lengths)
    lines = [f"{batch.batch} x {batch.maximum}, {sum(lengths)} tokens"]
    for kernel in counts:
        parts = ", ".join(f"{name} {time_us:.2f}" for name, time_us in kernel.least_us.items() if time_us > 0)
        lines.append(f"  {kernel.kernel:10s} {kernel.bound_us:7.2f} us ({parts})")
    bound_us = sum(kernel.bound_us for kernel in counts)
    lines.append(f"  {'layer':10s} {bound_us:7.2f} us, and {len(counts)} launches of {LAUNCH_US} us")
    return lines


def main() -> int:
    """Prints the account."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384, help="E")
    parser.add_argument("--heads", type=int, default=12, help="H")
    parser.add_argument("--inner", type=int, help="features between up and down (default: 4 E)")
    arguments = parser.parse_args()
    layer = Layer(arguments.hidden, arguments.heads, arguments.inner or 4 * arguments.hidden)
    for batch in BATCHES:
        print("\n".join(report(layer, batch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
