# SPDX-License-Identifier: Apache-2.0
"""How far a model may be from the original, for each precision, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import BuildError


@dataclass(frozen=True)
class Tolerance:
    """What may differ; all must hold for every valid token.

    absolute: largest difference of one number, in parts of its column's root mean square, as
        onnx_tools/verification/agreement.py has it.
    relative: length of the difference of one row (a token's or a sequence's numbers, each in parts of its column's root
        mean square) in parts of the row's own length, or of a usual row's where the row is shorter than that.
    """

    absolute: float
    relative: float
    cosine: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("absolute", self.absolute), ("relative", self.relative)):
            if not 0 < value < float("inf"):
                raise BuildError(f"{name} tolerance {value}, allowed: a number above 0; pass 0.01, for example")


# fp32 sums the same terms in another order: 6e-6 of a root mean square was measured after BERT-base's 12 layers, and
# deeper models may have ten times that. The others round every tensor to 11 or 8 bits: each rounding is off by at most
# 2^-11 or 2^-8, and the errors of some 100 roundings one after the other add up like a random walk (x 10), of which the
# worst of many rows has up to four times the average. On an H200 BERT-base was off by up to 0.025 absolute and 0.0054
# relative in fp16 (padded TensorRT), by 0.08 and 0.017 in bf16. e4m3 rounds both factors of a GEMM to 3 bits, which
# costs each GEMM about 0.04 of its result; MiniLM's sentence vectors were up to 0.10 off relative and 0.36 absolute,
# with a cosine of 0.9947 at least, and those of random weights, whose attention is sharper, up to 0.20, 0.94 and 0.979
# (docs/guide/fp8.md). A cosine is asked for as well, as the others must allow so much that they would let a wrong row
# of a long sequence pass.
TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "fp32": Tolerance(absolute=2e-4, relative=1e-4),
        "fp16": Tolerance(absolute=5e-2, relative=2e-2),
        "bf16": Tolerance(absolute=4e-1, relative=8e-2),
        "fp8": Tolerance(absolute=2.0, relative=4e-1, cosine=0.97),
        "int8": Tolerance(absolute=2.0, relative=4e-1, cosine=0.97),
    }
)


def describe_tolerances() -> str:
    """One paragraph for --help."""
    parts = [
        f"{name}: absolute {item.absolute:g}, relative {item.relative:g}"
        + ("" if item.cosine is None else f", cosine of a sequence {item.cosine:g} or more")
        for name, item in TOLERANCES.items()
    ]
    return (
        "absolute is the largest difference of one number, in parts of its column's root mean square; relative is the "
        "length of a row's difference in parts of the row's length. Defaults by precision: "
        + "; ".join(parts)
        + ". fp32 allows for sums in another order, fp16 and bf16 for about a hundred roundings one after the other, "
        "fp8 and int8 for products of numbers of 8 bits."
    )
