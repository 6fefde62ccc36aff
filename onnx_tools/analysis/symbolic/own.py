# SPDX-License-Identifier: Apache-2.0
"""What the padfree operators make."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...operators import MOMENTS_GROUP
from .facts import Facts, Known
from .poly import Poly

_E4M3 = "float8_e4m3fn"


def padfree(node: gs.Node, known: Known) -> list[Facts]:
    """Facts about the outputs of a padfree node."""
    first = known[0]
    batch, length, tokens = Poly.atom("B"), Poly.atom("S"), Poly.atom("T")
    rest = () if first.shape is None else first.shape[1:]
    if node.op == "PadfreeIndex":
        return [Facts((tokens,), "int32"), Facts((batch,), "int32"), Facts((), "int32")]
    if node.op == "PadfreeSchedule":
        slots = [Facts((tokens,), "int32")] * (node.attrs["has_extent"] + node.attrs["has_positions"])
        lists = [Facts((Poly.atom("L"), Poly.of(4)), "int32")] if node.attrs["has_tasks"] else []
        return [Facts((batch + 1,), "int32"), *slots, *lists]
    if node.op == "PadfreeLayerNorm":
        rows = Facts(first.shape, first.dtype)
        return [*_results(node, rows), *([rows] if node.attrs["has_sum"] else [])]
    if first.shape is None:
        return [Facts(dtype=first.dtype)] * len(node.outputs)
    if node.op == "PadfreePack":
        return [Facts((tokens, *rest[1:]), first.dtype)]
    if node.op == "PadfreeUnpack":
        return [Facts((batch, length, *rest), first.dtype)]
    if node.op == "PadfreeAttention":
        width = int(node.attrs["num_heads"]) * int(node.attrs["head_size"])
        return [Facts((tokens, Poly.of(width)), _E4M3 if node.attrs["quantized"] else first.dtype)]
    if node.op == "PadfreeLinear":
        return _linear(node, known, first.shape[0])
    if node.op == "PadfreeLinearFp8":
        return _linear_fp8(node, known, first.shape[0])
    if node.op == "PadfreePool":
        return [Facts((batch, *rest), first.dtype)]
    if node.op == "PadfreeRotary":
        return [Facts(first.shape, first.dtype)]
    table = known[-2] if node.attrs["has_beta"] else known[-1]  # gamma: [E], of the type of the activations
    return _results(node, Facts((tokens, *(table.shape or ())), table.dtype))


def _results(node: gs.Node, rows: Facts) -> list[Facts]:
    """Rows in the types that the attribute `results` asks for, of those in the activations' type."""
    narrow = Facts(rows.shape, _E4M3)
    return {"act": [rows], "e4m3": [narrow], "both": [rows, narrow]}[node.attrs["results"]]


def _linear(node: gs.Node, known: Known, tokens: Poly) -> list[Facts]:
    """The result [T,N], gated [T,N/2], and the moments [N/64,T,2] of its rows; T is B for first tokens."""
    columns = (known[1].shape or ())[1:]
    width = columns[0].constant() if columns else None
    if node.attrs["gated"]:
        return [Facts(None if width is None else (tokens, Poly.of(width // 2)), known[0].dtype)]
    gemm = Facts((tokens, *columns), known[0].dtype)
    if not node.attrs["has_moments"]:
        return [gemm]
    if width is None:
        return [gemm, Facts(dtype="float32")]
    return [gemm, Facts((Poly.of(width // MOMENTS_GROUP), tokens, Poly.of(2)), "float32")]


def _linear_fp8(node: gs.Node, known: Known, tokens: Poly) -> list[Facts]:
    """Results of the weight's [N,K] N columns, gated half of them, in the types asked for, and the rows' moments."""
    rows = known[1].shape
    features = rows[0].constant() if rows else None
    width = None if features is None else features // 2 if node.attrs["gated"] else features
    results = _results(
        node, Facts(None if width is None else (tokens, Poly.of(width)), known[3].dtype)
    )  # the bias' type
    if not node.attrs["has_moments"]:
        return results
    if width is None:
        return [*results, Facts(dtype="float32")]
    return [*results, Facts((Poly.of(width // MOMENTS_GROUP), tokens, Poly.of(2)), "float32")]
