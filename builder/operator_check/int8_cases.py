# SPDX-License-Identifier: Apache-2.0
"""Checks of GEMMs in int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from padfree.contract.names import INT8

from .graphs import CaseGraph

_STEP = 2.0**-5
"""Of x, whose numbers are normally distributed."""


def linear(width: int, features: int, **attributes: Any) -> CaseGraph:
    """A GEMM of rows that QuantizeLinear gives."""
    graph = CaseGraph(INT8)
    inputs = {"x": _rows(graph, width), **_operands(graph, width, features, "")}
    graph.output(graph.node("PadfreeLinearInt8", inputs, results="act", **attributes)["y"])
    return graph


def two_gemms(width: int, features: int) -> CaseGraph:
    """The first one's results are int8."""
    graph = CaseGraph(INT8)
    factors = graph.constant("factors", np.linspace(20, 40, features).astype(np.float32))
    inputs = {"x": _rows(graph, width), **_operands(graph, width, features, "_up"), "y_factors": factors}
    up = graph.node("PadfreeLinearInt8", inputs, activation="relu", results="int8")
    inputs = {"x": up["y_int8"], **_operands(graph, features, width, "_down")}
    graph.output(graph.node("PadfreeLinearInt8", inputs, results="act")["y"])
    return graph


MAKERS: Mapping[str, Callable[[int, int], CaseGraph]] = {
    "bias, GELU": partial(linear, activation="gelu"),
    "two GEMMs": two_gemms,
}
"""By variant; called with the numbers of columns of x and of the first GEMM's result."""


def _rows(graph: CaseGraph, width: int) -> str:
    graph.output(graph.schedule(num_heads=1)["cu_seqlens"], tokens=None, kind="int32")
    step, zero = graph.constant("step", np.asarray(_STEP, np.float16)), graph.constant("zero", np.zeros((), np.int8))
    return graph.standard("QuantizeLinear", graph.rows("x", width), step, zero)


def _operands(graph: CaseGraph, depth: int, features: int, suffix: str) -> dict[str, str]:
    weight = np.random.default_rng(2).integers(-127, 128, (features, depth)).astype(np.int8)
    return {
        "weight": graph.constant(f"weight{suffix}", weight),
        "scale": graph.constant(f"scale{suffix}", np.full(features, _STEP / 74 * depth**-0.5, np.float32)),
        "bias": graph.weight(f"bias{suffix}", features),
    }
