# SPDX-License-Identifier: Apache-2.0
"""What PadfreeLinear's epilogues cost on a GPU: gates, rotated pairs, norms, residuals with moments, in one process.

    python -m benchmarks.kernels.linear_epilogues --tokens 4802

ModernBERT-base's GEMMs. Beside each stand cuBLAS (through PyTorch) alone, and cuBLAS followed by kernels that do what
the epilogue does: PyTorch's for gates and sums, PadfreeRotary for rotated pairs. Norms are in neither. Weights rotate
past the L2 cache in a CUDA graph, as in benchmarks.kernels.linear; tilings are those that a build would measure.
Answers are checked in tests/kernels. Needs libpadfree_kernels.so named by PADFREE_KERNELS_LIBRARY.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from padfree.builder.bench.environment import append_record, environment

from tests.support.launchers import Moments, Rotation, linear, measured_tilings, rotary

from .linear import DEVICE, MIN_CALLS, Launch, time_us

GROUP = 64
HEAD_SIZE = 64
TOKENS = (1403, 4802)


@dataclass(frozen=True)
class Epilogue:
    """A GEMM's sizes, and what becomes of its sums; norms: of "x", "residual" and "y", as in Moments."""

    depth: int
    features: int
    activation: str = "none"
    gated: bool = False
    rotary_features: int = 0
    norms: tuple[str, ...] = ()
    residual: bool = False

    @property
    def name(self) -> str:
        """Sizes and all parts of the epilogue."""
        words = [f"{self.depth} x {self.features}", *(f"moments of {norm}" for norm in self.norms)]
        words += ["gated"] * self.gated + [self.activation] * (self.activation != "none") + ["residual"] * self.residual
        return ", ".join(words + [f"{self.rotary_features} rotated"] * (self.rotary_features > 0))


NORMED = ("x",)
EPILOGUES = (
    Epilogue(768, 2304),
    Epilogue(768, 2304, norms=NORMED),
    Epilogue(768, 2304, rotary_features=1536),
    Epilogue(768, 2304, norms=NORMED, rotary_features=1536),
    Epilogue(768, 2304, norms=NORMED, rotary_features=2304),
    Epilogue(768, 2304, "gelu"),
    Epilogue(768, 2304, "gelu", norms=NORMED),
    *(Epilogue(768, 2304, kind, gated=True) for kind in ("gelu", "silu", "gelu_tanh", "relu")),
    Epilogue(768, 2304, "gelu", gated=True, norms=NORMED),
    Epilogue(1152, 768),
    Epilogue(1152, 768, norms=("y",), residual=True),
    Epilogue(768, 768, norms=("y",), residual=True),
)


def rotation_of(tokens: int, features: int) -> Rotation:
    """Rotation for heads of HEAD_SIZE, in sequences of 512 tokens."""
    return Rotation(
        torch.arange(tokens, device=DEVICE, dtype=torch.int32) % 512,
        10000.0 ** -(torch.arange(features // 2, device=DEVICE) % (HEAD_SIZE // 2) / HEAD_SIZE * 2),
    )


class Problem:
    """Inputs of a GEMM with a fixed seed."""

    def __init__(self, epilogue: Epilogue, tokens: int, dtype: torch.dtype) -> None:
        generator = torch.Generator(device=DEVICE).manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=DEVICE)

        def moments(width: int, present: bool) -> torch.Tensor | None:
            return normal(width // GROUP, tokens, 2).abs() if present else None

        depth, features = epilogue.depth, epilogue.features
        self.epilogue = epilogue
        self.x = normal(tokens, depth).to(dtype)
        self.weights = [(normal(depth, features) * depth**-0.5).to(dtype) for _ in range(MIN_CALLS)]
        self.bias = normal(features).to(dtype)
        self.residual = normal(tokens, features).to(dtype) if epilogue.residual else None
        self.y = self.x.new_empty(tokens, features // 2 if epilogue.gated else features)
        self.wide = self.x.new_empty(tokens, features)
        self.out = self.x.new_empty(tokens, features)
        self.rotation = rotation_of(tokens, epilogue.rotary_features)
        self.moments = Moments(
            of_x=moments(depth, "x" in epilogue.norms),
            out=moments(features, "y" in epilogue.norms),
        )

    def ours(self) -> Launch:
        """The GEMM with its epilogue."""
        epilogue = self.epilogue
        [(_, tiling)] = measured_tilings(
            epilogue.depth, epilogue.features, epilogue.activation, self.x.dtype, len(self.x), len(self.x),
            residual=epilogue.residual, gated=epilogue.gated, rotary_features=epilogue.rotary_features,
            norms=epilogue.norms,
        )  # fmt: skip
        return lambda i: linear(
            self.x, self.weights[i], self.y, bias=self.bias, residual=self.residual, moments=self.moments,
            rotation=self.rotation if epilogue.rotary_features else None, activation=epilogue.activation,
            gated=epilogue.gated, tiling=tiling,
        )  # fmt: skip

    def gemm(self, i: int) -> None:
        """The GEMM by cuBLAS."""
        torch.addmm(self.bias, self.x, self.weights[i], out=self.wide)

    def separately(self) -> Launch | None:
        """The GEMM, then kernels that do what the epilogue does; None if the epilogue does nothing, or has a norm."""
        rotate: Callable[[], object] | None = None
        if self.epilogue.rotary_features:
            heads, pairs = self.epilogue.rotary_features // HEAD_SIZE, HEAD_SIZE // 2
            frequencies = self.rotation.frequencies[:pairs]

            def rotate() -> None:
                rotary(self.wide, self.rotation.positions, frequencies, self.out, heads=heads, head_size=HEAD_SIZE)

        elif self.epilogue.activation != "none":
            functional = torch.nn.functional
            tanh = {"approximate": "tanh"} if self.epilogue.activation == "gelu_tanh" else {}
            activate = getattr(functional, self.epilogue.activation.removesuffix("_tanh"))

            def rotate() -> object:
                if not self.epilogue.gated:
                    return activate(self.wide, **tanh)
                u, v = self.wide.chunk(2, 1)
                return torch.mul(activate(u, **tanh), v, out=self.y)
        elif self.residual is not None:

            def rotate() -> object:
                return torch.add(self.wide, self.residual, out=self.y)

        if rotate is None:
            return None

        def launch(i: int) -> None:
            self.gemm(i)
            rotate()

        return launch


def measure(epilogue: Epilogue, tokens: int, dtype: torch.dtype) -> dict[str, object]:
    """The times of all implementations in us."""
    problem = Problem(epilogue, tokens, dtype)
    ways: dict[str, Launch | None] = {"padfree": problem.ours(), "cublas": problem.gemm}
    ways["cublas and separate"] = problem.separately()
    times = {name: round(time_us(way, MIN_CALLS)[0], 2) for name, way in ways.items() if way is not None}
    return {"case": f"{tokens} x {epilogue.name}", "tokens": tokens, "times_us": times}


def main() -> int:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS), help="T")
    parser.add_argument("--type", default="float16", choices=["float16", "bfloat16"], help="of every tensor")
    parser.add_argument("--json", type=Path, help="append one line per case to this file")
    arguments = parser.parse_args()
    about = environment()
    for tokens in arguments.tokens:
        for epilogue in EPILOGUES:
            record = measure(epilogue, tokens, getattr(torch, arguments.type))
            print(f"{record['case']:60s} {record['times_us']}", flush=True)
            if arguments.json:
                append_record(arguments.json, {**record, "type": arguments.type, **about})
    return 0


if __name__ == "__main__":
    sys.exit(main())
