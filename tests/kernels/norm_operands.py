# SPDX-License-Identifier: Apache-2.0
"""Random operands for tests of norms, and the truth in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .cases import DEVICE, generator


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(*shape, device=DEVICE, generator=generator(seed)).to(dtype)


def norm_rows(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None, rms: bool, eps: float) -> torch.Tensor:
    """Layer norm or RMS norm over the last axis, in the type of x."""
    if rms:
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gamma
        return y if beta is None else y + beta
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), gamma, beta, eps)


@dataclass(frozen=True)
class NormOperands:
    """Operands of PadfreeLayerNorm for rows [T, E]; those that the options do not name are None."""

    x: torch.Tensor
    bias: torch.Tensor | None
    residual: torch.Tensor | None
    gamma: torch.Tensor
    beta: torch.Tensor | None
    rms: bool

    @staticmethod
    def draw(rows: int, width: int, dtype: torch.dtype, options: str) -> NormOperands:
        """Draws operands, with the parts that the options name: bias, residual, beta, rms."""
        return NormOperands(
            normal(rows, width, dtype=dtype, seed=1) * 3 + 1,
            normal(width, dtype=dtype, seed=2) if "bias" in options else None,
            normal(rows, width, dtype=dtype, seed=3) if "residual" in options else None,
            normal(width, dtype=dtype, seed=4),
            normal(width, dtype=dtype, seed=5) if "beta" in options else None,
            "rms" in options,
        )

    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """The operands in the order of the launchers' arguments."""
        return self.x, self.bias, self.residual, self.gamma, self.beta

    def sum_in(self, dtype: torch.dtype) -> torch.Tensor:
        """x + bias + residual."""
        total = self.x.to(dtype)
        for part in (self.bias, self.residual):
            total = total if part is None else total + part.to(dtype)
        return total

    def truth(self, eps: float) -> torch.Tensor:
        """The norm in float64."""
        beta = None if self.beta is None else self.beta.double()
        return norm_rows(self.sum_in(torch.float64), self.gamma.double(), beta, self.rms, eps)
