# SPDX-License-Identifier: Apache-2.0
"""The coverage report: what was packed, what was not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from .graph import is_padfree, is_standard, made_by, node_name
from .layout import Layout, S, T, layout_of
from .passes import Miss, PassResult
from .passes.counted_ids import counted_ids
from .symbolic import Analysis, Index, Poly
from .symbolic.expr import axis_index


@dataclass(frozen=True)
class CoverageReport:
    """What a rewrite did.

    `packed_gemm_share` is the share of the multiplications with weights, counted per token, that run on packed tokens.
    `islands` are the nodes that stayed padded, each with the reason.
    """

    passes: tuple[PassResult, ...]
    islands: tuple[Miss, ...]
    packed_gemm_share: float
    outputs: Mapping[str, str]
    plugins: Mapping[str, int]

    @property
    def excluded_ids(self) -> dict[str, tuple[int, ...]]:
        """Padding ids by input, which kept tokens must not have: the packed graph counts every token it gets."""
        return {name: ids for item in self.passes for name, ids in item.excluded}

    @property
    def complete(self) -> bool:
        """Whether nothing that tokens take part in stayed padded."""
        return not self.islands and self.packed_gemm_share == 1.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "complete": self.complete,
            "packed_gemm_share": self.packed_gemm_share,
            "passes": [
                {"name": item.name, "replaced": item.replaced, "missed": [asdict(miss) for miss in item.missed]}
                for item in self.passes
            ],
            "islands": [asdict(item) for item in self.islands],
            "outputs": dict(self.outputs),
            "plugins": dict(self.plugins),
            "excluded_ids": {name: list(ids) for name, ids in self.excluded_ids.items()},
        }

    def __str__(self) -> str:
        lines = [f"packed: {self.packed_gemm_share:.1%} of the linear layers' work"]
        lines += [f"{item.name}: {item.replaced} replaced, {len(item.missed)} missed" for item in self.passes]
        lines += [f"  missed: {miss.reason}" for item in self.passes for miss in item.missed]
        lines += [f"padded: {item.node}: {item.reason}" for item in self.islands]
        lines += [f"output {name}: {layout}" for name, layout in self.outputs.items()]
        lines += [
            f"positions count every token: '{name}' must not hold {', '.join(str(i) for i in ids[:3])} in a sequence"
            for name, ids in self.excluded_ids.items()
        ]
        return "\n".join(lines)


def coverage(graph: gs.Graph, analysis: Analysis, passes: tuple[PassResult, ...]) -> CoverageReport:
    """The report for a rewritten graph."""
    plugins: dict[str, int] = {}
    for node in graph.nodes:
        if is_padfree(node, node.op):
            plugins[node.op] = plugins.get(node.op, 0) + 1
    return CoverageReport(
        passes,
        _islands(graph, analysis, passes),
        _packed_share(graph, analysis),
        {tensor.name: layout_of(analysis[tensor]).value for tensor in graph.outputs},
        plugins,
    )


def _islands(graph: gs.Graph, analysis: Analysis, passes: tuple[PassResult, ...]) -> tuple[Miss, ...]:
    """Nodes of the final graph that compute on padded tokens of numbers."""
    reasons = {miss.node: miss.reason for item in passes for miss in item.missed}
    found = []
    for node in graph.nodes:
        if is_padfree(node, node.op) or not node.outputs or is_standard(node, "Cast", "Shape"):
            continue
        padded = any(
            layout_of(analysis[tensor]) is Layout.PADDED and _is_number(analysis, tensor) for tensor in node.outputs
        )
        if padded:
            name = node_name(node)
            reason = reasons.get(name, f"'{name}' ({node.op}) works between nodes that stay padded")
            found.append(Miss(name, reason))
    return tuple(found)


def _is_number(analysis: Analysis, tensor: gs.Tensor) -> bool:
    facts = analysis[tensor]
    known = facts.constant or facts.expr is not None or facts.elements is not None
    return not known and (facts.dtype or "float").startswith(("float", "bfloat"))


def _packed_share(graph: gs.Graph, analysis: Analysis) -> float:
    """Multiplications per token in MatMul and Gemm with a weight: the part that is done on [T,...]."""
    packed, total = 0, 0
    for node in graph.nodes:
        if not is_standard(node, "MatMul", "Gemm"):
            continue
        shape, weight = analysis[node.inputs[0]].shape, analysis[node.inputs[1]]
        if not weight.constant or weight.static_shape() is None:
            continue
        work = int(np.prod(weight.static_shape() or (0,), dtype=np.int64))
        tokens = shape is None or bool({"S", "T"} & set().union(*(size.atoms() for size in shape)))
        if tokens:
            total += work
            packed += work if shape is not None and shape[0] == T else 0
    return packed / total if total else 1.0


def limit_of(graph: gs.Graph, name: str) -> int | None:
    """How many values an input's ids may take: the rows of the smallest table that they choose from."""
    tensor = next(item for item in graph.inputs if item.name == name)
    limits, seen = list[int](), [tensor]
    while seen:
        current = seen.pop()
        for node in current.outputs:
            if is_padfree(node, "PadfreeEmbedding"):
                limits += _embedding_limits(node, current)
            elif is_standard(node, "Gather") and len(node.inputs) > 1 and node.inputs[1] is current:
                if isinstance(node.inputs[0], gs.Constant) and int(node.attrs.get("axis", 0)) == 0:
                    limits.append(int(node.inputs[0].shape[0]))
            elif is_padfree(node, "PadfreePack", "PadfreeUnpack") or is_standard(node, "Cast", "Identity"):
                seen += list(node.outputs)
    return min(limits) if limits else None


def _embedding_limits(node: gs.Node, tensor: gs.Tensor) -> list[int]:
    """Rows of the tables of an embedding that `tensor` indexes."""
    tables = embedding_tables(node)
    names = ["ids"] + ["types"] * node.attrs["has_token_types"] + ["positions"] * node.attrs["has_positions"]
    return [tables[role] for role, item in zip(names, node.inputs, strict=False) if item is tensor and role in tables]


def embedding_tables(node: gs.Node) -> dict[str, int]:
    """Number of rows of each table of a PadfreeEmbedding."""
    position = 2 + node.attrs["has_token_types"] + node.attrs["has_positions"]
    roles = ["ids"] + ["positions"] * node.attrs["has_position_table"] + ["types"] * node.attrs["has_token_types"]
    return {role: int(node.inputs[position + i].shape[0]) for i, role in enumerate(roles)}


def longest_sequence(graph: gs.Graph, analysis: Analysis) -> int | None:
    """How many tokens a sequence may have: what position tables and buffers allow; None where nothing limits it."""
    limits: list[int] = []
    for node in graph.nodes:
        if is_padfree(node, "PadfreeEmbedding") and node.attrs["has_position_table"]:
            limits.append(embedding_tables(node)["positions"] - _first_position(node, analysis))
        elif is_standard(node, "Slice") and isinstance(node.inputs[0], gs.Constant):
            shape = analysis[node.outputs[0]].shape or ()
            limits += [int(size) for size, new in zip(node.inputs[0].shape, shape, strict=False) if new == S]
        elif is_standard(node, "Gather") and isinstance(node.inputs[0], gs.Constant) and len(node.inputs[0].shape) == 2:
            expr = analysis[node.inputs[1]].expr
            counted = expr.poly - axis_index(1) if isinstance(expr, Index) else None
            offset = None if counted is None else counted.constant()
            if offset is not None and int(node.attrs.get("axis", 0)) == 0:
                limits.append(int(node.inputs[0].shape[0]) - offset)
    return min(limits) if limits else None


def _first_position(node: gs.Node, analysis: Analysis) -> int:
    """The smallest row of the position table that tokens of a PadfreeEmbedding take."""
    if not node.attrs["has_positions"]:
        return int(node.attrs["position_offset"])
    positions = node.inputs[1 + int(node.attrs["has_token_types"])]
    while positions.inputs and (is_padfree(positions.inputs[0], "PadfreePack") or made_by(positions, "Cast")):
        positions = positions.inputs[0].inputs[0]
    found = counted_ids(analysis, positions, embedding_tables(node)["ids"])
    return 0 if found is None else found.offset


def first_width(analysis: Analysis, graph: gs.Graph) -> int | None:
    """Hidden size: the width of what the first attention gives."""
    for node in graph.nodes:
        if is_padfree(node, "PadfreeAttention"):
            shape = analysis[node.outputs[0]].shape
            size: Poly | None = None if shape is None else shape[1]
            return None if size is None else size.constant()
    return None
