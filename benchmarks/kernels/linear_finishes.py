# SPDX-License-Identifier: Apache-2.0
"""What PadfreeLinear's finishes cost on a GPU: gates, turned pairs, norms, residuals with moments, in one process.

    python -m benchmarks.kernels.linear_finishes --tokens 4802

ModernBERT-base's products. Beside each stand cuBLAS (through PyTorch) alone, and cuBLAS with what the finish does in
kernels behind it: PyTorch's for gates and sums, PadfreeRotary for turned pairs. Norms are in neither. Weights rotate
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
class Finish:
    """A product of these sizes and what becomes of its sums; norms: of "x", "residual" and "y", as Moments has them."""

    depth: int
    features: int
    activation: str = "none"
    gated: bool = False
    rotary_features: int = 0
    norms: tuple[str, ...] = ()
    residual: bool = False

    @property
    def name(self) -> str:
        """Sizes and everything that is asked for."""
        words = [f"{self.depth} x {self.features}", *(f"moments of {norm}" for norm in self.norms)]
        words += ["gated"] * self.gated + [self.activation] * (self.activation != "none") + ["residual"] * self.residual
        return ", ".join(words + [f"{self.rotary_features} turned"] * (self.rotary_features > 0))


NORMED = ("x",)
FINISHES = (
    Finish(768, 2304),
    Finish(768, 2304, norms=NORMED),
    Finish(768, 2304, rotary_features=1536),
    Finish(768, 2304, norms=NORMED, rotary_features=1536),
    Finish(768, 2304, norms=NORMED, rotary_features=2304),
    Finish(768, 2304, "gelu"),
    Finish(768, 2304, "gelu", norms=NORMED),
    *(Finish(768, 2304, kind, gated=True) for kind in ("gelu", "silu", "gelu_tanh", "relu")),
    Finish(768, 2304, "gelu", gated=True, norms=NORMED),
    Finish(1152, 768),
    Finish(1152, 768, norms=("y",), residual=True),
    Finish(768, 768, norms=("y",), residual=True),
)


def rotation_of(tokens: int, features: int) -> Rotation:
    """That of heads of HEAD_SIZE, in sequences of 512 tokens."""
    return Rotation(
        torch.arange(tokens, device=DEVICE, dtype=torch.int32) % 512,
        10000.0 ** -(torch.arange(features // 2, device=DEVICE) % (HEAD_SIZE // 2) / HEAD_SIZE * 2),
    )


class Problem:
    """Inputs of a product with a fixed seed."""

    def __init__(self, epilogue: Finish, tokens: int, dtype: torch.dtype) -> None:
        generator = torch.Generator(device=DEVICE).manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=DEVICE)

        def moments(width: int, present: bool) -> torch.Tensor | None:
            return normal(width // GROUP, tokens, 2).abs() if present else None

        depth, features = epilogue.depth, epilogue.features
        self.finish = epilogue
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
        """The product with its finish."""
        epilogue = self.finish
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

    def product(self, i: int) -> None:
        """By cuBLAS."""
        torch.addmm(self.bias, self.x, self.weights[i], out=self.wide)

    def separately(self) -> Launch | None:
        """The product and what the finish does behind it; None where that is nothing, or a norm."""
        behind: Callable[[], object] | None = None
        if self.finish.rotary_features:
            heads, pairs = self.finish.rotary_features // HEAD_SIZE, HEAD_SIZE // 2
            frequencies = self.rotation.frequencies[:pairs]

            def behind() -> None:
                rotary(self.wide, self.rotation.positions, frequencies, self.out, heads=heads, head_size=HEAD_SIZE)

        elif self.finish.activation != "none":
            functional = torch.nn.functional
            tanh = {"approximate": "tanh"} if self.finish.activation == "gelu_tanh" else {}
            activate = getattr(functional, self.finish.activation.removesuffix("_tanh"))

            def behind() -> object:
                if not self.finish.gated:
                    return activate(self.wide, **tanh)
                u, v = self.wide.chunk(2, 1)
                return torch.mul(activate(u, **tanh), v, out=self.y)
        elif self.residual is not None:

            def behind() -> object:
                return torch.add(self.wide, self.residual, out=self.y)

        if behind is None:
            return None

        def launch(i: int) -> None:
            self.product(i)
            behind()

        return launch


def measure(epilogue: Finish, tokens: int, dtype: torch.dtype) -> dict[str, object]:
    """Times of all ways, in us."""
    problem = Problem(epilogue, tokens, dtype)
    ways: dict[str, Launch | None] = {"padfree": problem.ours(), "cublas": problem.product}
    ways["cublas and separate"] = problem.separately()
    times = {name: round(time_us(way, MIN_CALLS)[0], 2) for name, way in ways.items() if way is not None}
    return {"case": f"{tokens} x {epilogue.name}", "tokens": tokens, "times_us": times}


def main() -> int:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="*", type=int, default=list(TOKENS), help="T")
    parser.add_argument("--type", default="float16", choices=["float16", "bfloat16"], help="of every tensor")
    parser.add_argument("--json", type=Path, help="append one line a case to this file")
    arguments = parser.parse_args()
    about = environment()
    for tokens in arguments.tokens:
        for epilogue in FINISHES:
            record = measure(epilogue, tokens, getattr(torch, arguments.type))
            print(f"{record['case']:60s} {record['times_us']}", flush=True)
            if arguments.json:
                append_record(arguments.json, {**record, "type": arguments.type, **about})
    return 0


if __name__ == "__main__":
    sys.exit(main())
