# SPDX-License-Identifier: Apache-2.0
"""GEMMs with a scale, transposed operands or an activation: FusedMatMul and FusedGemm."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import onnx_graphsurgeon as gs

from .expansion import Expansion, NotImportable


def fused_matmul(e: Expansion) -> gs.Tensor:
    """alpha * A B. transA/B swap the last two axes, transBatchA/B move the first axis after the batch's."""
    a = _operand(e, e.input(0, "A"), "A")
    b = _operand(e, e.input(1, "B"), "B")
    matmul, alpha = e.op("MatMul", a, b), e.number("alpha", 1.0)
    return matmul if alpha == 1.0 else e.op("Mul", matmul, alpha)


def _operand(e: Expansion, tensor: gs.Tensor, which: str) -> gs.Tensor:
    transposed, batch = bool(e.integer(f"trans{which}")), bool(e.integer(f"transBatch{which}"))
    if not transposed and not batch:
        return tensor
    rank = len(e.shape(tensor, which))
    if rank < 2:
        raise NotImportable(f"its {which} has {rank} axes, too few to be transposed")
    order = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
    if transposed:
        order[-2:] = order[:-3:-1]
    return e.op("Transpose", tensor, perm=order)


# By activation, the names of the attributes that activation_alpha and activation_beta stand for.
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Elu": ("alpha",),
        "HardSigmoid": ("alpha", "beta"),
        "LeakyRelu": ("alpha",),
        "Relu": (),
        "Sigmoid": (),
        "Softplus": (),
        "Softsign": (),
        "Tanh": (),
        "ThresholdedRelu": ("alpha",),
    }
)


def fused_gemm(e: Expansion) -> gs.Tensor:
    """Gemm, then an activation."""
    activation = str(e.node.attrs.get("activation", ""))
    names = _ACTIVATIONS.get(activation)
    if names is None:
        raise NotImportable(f"its activation is '{activation}', known are {', '.join(_ACTIVATIONS)}")
    own = {name: e.node.attrs[name] for name in ("alpha", "beta", "transA", "transB") if name in e.node.attrs}
    inputs = [e.input(0, "A"), e.input(1, "B"), *(item for item in [e.optional_input(2)] if item is not None)]
    gemm = e.op("Gemm", *inputs, **own)
    keys = {name: f"activation_{name}" for name in names if f"activation_{name}" in e.node.attrs}
    factors: dict[str, Any] = {name: e.number(key, 0.0) for name, key in keys.items()}
    return e.op(activation, gemm, **factors)
