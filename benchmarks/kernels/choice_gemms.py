# SPDX-License-Identifier: Apache-2.0
"""GEMMs of the families of encoders with their epilogues, for benchmarks.kernels.choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

BOTH = ("y", "y_e4m3")
HIDDEN = (768, 384, 1024)


@dataclass(frozen=True)
class Gemm:
    """Sizes and epilogue of a GEMM [T, depth] x [depth, features] with a bias.

    norms: whose moments are used, of "x", "residual" and "y". results: those of GEMMs of e4m3, "y" and "y_e4m3"; none
    for GEMMs of fp16.
    """

    name: str
    depth: int
    features: int
    activation: str = "none"
    norms: tuple[str, ...] = ()
    adds: bool = False  # whether a residual is added
    gated: bool = False
    rotary_features: int = 0
    results: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Features of the results."""
        return self.features // 2 if self.gated else self.features


def in_e4m3(gemm: Gemm) -> Gemm:
    """The same GEMM with operands in e4m3: results for the next GEMM are in e4m3, and the residual is also in fp16."""
    if gemm.activation != "none":
        return dataclasses.replace(gemm, results=("y_e4m3",))
    both = gemm.adds and "y" in gemm.norms
    return dataclasses.replace(gemm, results=BOTH if both else ("y",))


def post_norm_gemms(hidden: int) -> tuple[Gemm, ...]:
    """GEMMs of BERT and the like: norms follow attention and feed-forward, and are folded into GEMMs around them."""
    out = Gemm("out", hidden, hidden, norms=("residual", "y"), adds=True)
    down = Gemm("down", 4 * hidden, hidden, norms=("residual", "y"), adds=True)
    return (
        Gemm("qkv", hidden, 3 * hidden, norms=("x",)),
        out,
        Gemm("up", hidden, 4 * hidden, "gelu", ("x",)),
        down,
        dataclasses.replace(out, name="first out", norms=("y",)),
        dataclasses.replace(down, name="last down", norms=("residual",)),
    )


def norms_ahead(hidden: int, inner: int, activation: str, rotates: bool) -> tuple[Gemm, ...]:
    """GEMMs of ModernBERT and the like: norms come before layers, the residual is a stream, feed-forward is gated."""
    return (
        Gemm("qkv", hidden, 3 * hidden, norms=("x",), rotary_features=2 * hidden if rotates else 0),
        Gemm("out to a stream", hidden, hidden, norms=("y",), adds=True),
        Gemm("gated up", hidden, 2 * inner, activation, ("x",), gated=True),
        Gemm("down to a stream", inner, hidden, norms=("y",), adds=True),
    )


def seldom(hidden: int) -> tuple[Gemm, ...]:
    """Rare GEMMs: norms that are not folded, activations of a few models, results with nothing folded into them."""
    return (
        Gemm("plain qkv", hidden, 3 * hidden),
        Gemm("plain out", hidden, hidden),
        Gemm("plain out with a residual", hidden, hidden, adds=True),
        Gemm("plain up", hidden, 4 * hidden, "gelu"),
        Gemm("plain down", 4 * hidden, hidden),
        Gemm("up with gelu_tanh", hidden, 4 * hidden, "gelu_tanh", ("x",)),
        Gemm("up with relu", hidden, 4 * hidden, "relu", ("x",)),
        Gemm("up with silu", hidden, 4 * hidden, "silu"),
        Gemm("rotated qkv without a norm", hidden, 3 * hidden, rotary_features=2 * hidden),
        Gemm("gate with gelu_tanh", hidden, 4 * hidden, "gelu_tanh", ("x",), gated=True),
        Gemm("gate with relu", hidden, 4 * hidden, "relu", ("x",), gated=True),
        Gemm("down after a gate", 4 * hidden, hidden, norms=("residual", "y"), adds=True),
        Gemm("a head with sigmoid", hidden, hidden, "sigmoid"),
    )


def gemms() -> Iterator[Gemm]:
    """All GEMMs, those of most models first; those in fp16 before the same in e4m3."""
    common = [*post_norm_gemms(768), *norms_ahead(768, 1152, "gelu", rotates=True)]
    common += [*post_norm_gemms(384), *post_norm_gemms(1024)]
    for gemm in common:
        yield gemm
        yield in_e4m3(gemm)
    more = [
        *norms_ahead(1024, 3072, "silu", rotates=False),  # like Qwen3's, except for its width
        *norms_ahead(1024, 2624, "gelu", rotates=True),
        Gemm("gated up", 768, 6144, "silu", gated=True, norms=("x",)),
        Gemm("wide out to a stream", 2048, 1024, norms=("y",), adds=True),
    ]
    for gemm in [*more, *seldom(768), *seldom(384)]:
        yield gemm
    for gemm in [*more, *seldom(768)]:
        yield in_e4m3(gemm)
