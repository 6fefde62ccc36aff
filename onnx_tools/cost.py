# SPDX-License-Identifier: Apache-2.0
"""What GEMMs cost at given lengths: FLOPs before and after rewriting, and a GPU's roofline of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .gemms import OWN_LENGTH, PARTS, GemmShape

FP16_BYTES = 2


@dataclass(frozen=True)
class Lengths:
    """A batch of B sequences of mean length `mean`, padded to `maximum`.

    Attention needs the mean of the squares too. Lengths are taken to be uniform in [2 mean - maximum, maximum]. Where
    the mean is below half of the maximum, that range would go below 0; they are maximum * u**(maximum / mean - 1) then,
    with u uniform in [0, 1]. Both have the given mean and maximum, and agree where the mean is half of the maximum.
    """

    batch: int
    mean: float
    maximum: int

    @property
    def tokens(self) -> float:
        """The tokens T of all sequences."""
        return self.batch * self.mean

    @property
    def slots(self) -> int:
        """The B x S slots of the padded batch."""
        return self.batch * self.maximum

    @property
    def mean_square(self) -> float:
        """The mean of the squared lengths."""
        if 2 * self.mean >= self.maximum:
            return self.mean**2 + (self.maximum - self.mean) ** 2 / 3
        return float(self.maximum**2 / (2 * self.maximum / self.mean - 1))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "batch": self.batch,
            "mean": self.mean,
            "max": self.maximum,
            "tokens": self.tokens,
            "slots": self.slots,
        }


@dataclass(frozen=True)
class Gpu:
    """Dense fp16 tensor-core rate and memory bandwidth from the vendor's data sheet."""

    tflops: float
    gb_s: float


GPUS: Mapping[str, Gpu] = {
    # NVIDIA's data sheets: A100 80GB SXM, H100 SXM, H200 SXM, L4, L40S (half of the rate given with sparsity).
    "a100": Gpu(312.0, 2039.0),
    "h100": Gpu(989.4, 3350.0),
    "h200": Gpu(989.4, 4800.0),
    "l4": Gpu(121.0, 300.0),
    "l40s": Gpu(362.05, 864.0),
}
DEFAULT_GPU = "h200"


def size(text: str, lengths: Lengths, padded: bool) -> float:
    """A size of a GEMM as a number; with `padded`, every sequence has the maximum length. L counts as 1."""
    values = {
        "B": float(lengths.batch),
        "S": float(lengths.maximum),
        "T": float(lengths.slots) if padded else lengths.tokens,
        OWN_LENGTH: 1.0,
    }
    total = 0.0
    for term in text.split(" + "):
        part = 1.0
        for factor in term.split("*"):
            part *= values[factor] if factor in values else float(factor)
        total += part
    return total


def own_lengths(sizes: Iterable[str], lengths: Lengths, padded: bool) -> float:
    """What the letters L in a product of sizes stand for: the power of the lengths, summed over the sequences."""
    power = sum(text.split("*").count(OWN_LENGTH) for text in sizes)
    if not power:
        return 1.0
    if padded or power > 2:
        return float(lengths.batch * lengths.maximum**power)
    return lengths.batch * (lengths.mean if power == 1 else lengths.mean_square)


def volume(sizes: tuple[str, ...], lengths: Lengths, padded: bool = False) -> float:
    """The product of some sizes."""
    total = own_lengths(sizes, lengths, padded)
    for text in sizes:
        total *= size(text, lengths, padded)
    return total


def flops(gemm: GemmShape, lengths: Lengths, padded: bool = False) -> float:
    """Floating-point operations, two for a multiplication and its addition."""
    return 2 * gemm.count * volume((gemm.batch, gemm.rows, gemm.inner, gemm.columns), lengths, padded)


def moved_bytes(gemm: GemmShape, lengths: Lengths) -> float:
    """Bytes of the operands and the result in fp16, each moved once.

    Attention's scores, whose axes are both of tokens, are left out: fused kernels keep them on the chip.
    """
    matrices = ((gemm.rows, gemm.inner), (gemm.inner, gemm.columns), (gemm.rows, gemm.columns))
    elements = 0.0
    for matrix in matrices:
        scores = not gemm.weights and all({"S", OWN_LENGTH} & set(text.split("*")) for text in matrix)
        elements += 0.0 if scores else volume((gemm.batch, *matrix), lengths)
    return FP16_BYTES * gemm.count * elements


def roofline_s(gemms: Iterable[GemmShape], lengths: Lengths, gpu: Gpu) -> float:
    """The least time in seconds that a GPU needs for the GEMMs one by one: each waits for its FLOPs or for its bytes.

    Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
    """
    return sum(
        max(flops(item, lengths) / (1e12 * gpu.tflops), moved_bytes(item, lengths) / (1e9 * gpu.gb_s)) for item in gemms
    )


@dataclass(frozen=True)
class Figures:
    """FLOPs of a part of the model: of the original, after rewriting, and those of the latter still on padded tokens.

    `packed_share` is what the function of that name returns.
    """

    original_flops: float
    rewritten_flops: float
    padded_flops: float
    packed_share: float | None


def figures(original: Sequence[GemmShape], rewritten: Sequence[GemmShape], lengths: Lengths) -> Figures:
    """The figures of some GEMMs of both models."""
    return Figures(
        sum(flops(item, lengths) for item in original),
        sum(flops(item, lengths) for item in rewritten),
        sum(flops(item, lengths) for item in rewritten if item.padded),
        packed_share(rewritten, lengths),
    )


def packed_share(gemms: Iterable[GemmShape], lengths: Lengths) -> float | None:
    """The share of a rewritten model's GEMMs that computes no padding, counted with every sequence at the maximum.

    GEMMs of constants and of positions alone, which cost the same for one sequence as for a batch, do not count. None
    where there is no work.
    """
    shares = [(flops(item, lengths, padded=True), item.padded) for item in gemms if item.letters - {"S"}]
    at_most = sum(work for work, _ in shares)
    return sum(work for work, padded in shares if not padded) / at_most if at_most else None


def costs(
    original: Sequence[GemmShape], rewritten: Sequence[GemmShape], lengths: Lengths, gpu: str = DEFAULT_GPU
) -> dict[str, Any]:
    """What rewriting saves at these lengths, by part of the model; plain values, for JSON."""
    parts = {
        part: figures(
            [item for item in original if item.part == part], [item for item in rewritten if item.part == part], lengths
        )
        for part in PARTS
    }
    whole = figures(original, rewritten, lengths)
    limits = GPUS[gpu]
    before, after = (roofline_s(items, lengths, limits) for items in (original, rewritten))
    return {
        "lengths": lengths.to_dict(),
        "parts": {name: asdict(item) for name, item in {**parts, "all": whole}.items()},
        "flop_ratio": _ratio(whole.original_flops, whole.rewritten_flops),
        "roofline": {
            "gpu": gpu,
            "tflops": limits.tflops,
            "gb_s": limits.gb_s,
            "original_us": 1e6 * before,
            "rewritten_us": 1e6 * after,
            "ratio": _ratio(before, after),
        },
    }


def _ratio(before: float, after: float) -> float | None:
    return before / after if after else None
