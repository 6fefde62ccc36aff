# SPDX-License-Identifier: Apache-2.0
"""Activations: Gelu, BiasGelu, FastGelu, QuickGelu, and BiasAdd."""

from __future__ import annotations

import math

import onnx_graphsurgeon as gs

from .expansion import Expansion


def gelu(e: Expansion) -> gs.Tensor:
    """Gelu and BiasGelu: x / 2 * (1 + erf(x / sqrt(2)))."""
    x = e.sum(e.input(0, "tensor"), e.optional_input(1))
    error = e.op("Erf", e.op("Div", x, math.sqrt(2.0)))
    return _gate(e, x, error)


def fast_gelu(e: Expansion) -> gs.Tensor:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), with the constants of onnxruntime's kernels."""
    x = e.sum(e.input(0, "tensor"), e.optional_input(1))
    factor = e.op("Add", e.op("Mul", e.op("Mul", x, x), 0.035677408136300125), 0.7978845608028654)
    return _gate(e, x, e.op("Tanh", e.op("Mul", x, factor)))


def _gate(e: Expansion, x: gs.Tensor, gate: gs.Tensor) -> gs.Tensor:
    """x * (gate + 1) / 2."""
    return e.op("Mul", e.op("Mul", x, e.op("Add", gate, 1.0)), 0.5)


def quick_gelu(e: Expansion) -> gs.Tensor:
    """x * sigmoid(alpha * x); SiLU where alpha is 1."""
    x = e.input(0, "tensor")
    return e.op("Mul", x, e.op("Sigmoid", e.op("Mul", x, e.number("alpha", 1.702))))


def bias_add(e: Expansion) -> gs.Tensor:
    """x + bias + residual."""
    return e.sum(e.input(0, "tensor"), e.input(1, "bias"), e.input(2, "residual"))
