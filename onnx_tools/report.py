# SPDX-License-Identifier: Apache-2.0
"""The coverage report: what was packed, what was not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_graphsurgeon as gs

from .graph import is_padfree, is_standard, node_name
from .layout import Layout, layout_of
from .passes import Miss, PassResult
from .products import Product, Products, factors, products_of
from .symbolic import Analysis

LINEAR_LAYERS = ("MatMul", "Gemm", "PadfreeLinear")


@dataclass(frozen=True)
class CoverageReport:
    """What a rewrite did.

    `islands` are the nodes that stayed padded, each with the reason. `original` and `rewritten` are the matrix products
    of both graphs, which cost.py turns into FLOPs for given lengths.
    """

    passes: tuple[PassResult, ...]
    islands: tuple[Miss, ...]
    outputs: Mapping[str, str]
    plugins: Mapping[str, int]
    original: Products
    rewritten: Products

    @property
    def packed_gemm_share(self) -> float:
        """The share of the linear layers' multiplications, counted per token, that run on packed tokens."""
        layers = [item for item in self.rewritten.items if item.weights and item.op in LINEAR_LAYERS]
        tokens = sum(_multiplications(item) for item in layers if {"S", "T"} & factors(item.rows))
        packed = sum(_multiplications(item) for item in layers if item.rows == "T")
        return packed / tokens if tokens else 1.0

    @property
    def excluded_ids(self) -> dict[str, tuple[int, ...]]:
        """Padding ids by input, which kept tokens must not have: the packed graph counts every token it gets."""
        return {name: ids for item in self.passes for name, ids in item.excluded}

    @property
    def right_padded_only(self) -> bool:
        """Whether masks must be right-padded: attention takes lengths instead, or an island reads masked slots."""
        return any(item.right_padded for item in self.passes)

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
            "right_padded_only": self.right_padded_only,
            "products": {
                "original": [item.to_dict() for item in self.original.items],
                "rewritten": [item.to_dict() for item in self.rewritten.items],
                "uncounted": sorted({*self.original.uncounted, *self.rewritten.uncounted}),
            },
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
        if self.right_padded_only:
            lines.append("masks must be right-padded: with others the original reads padding, or takes lengths")
        return "\n".join(lines)


def _multiplications(product: Product) -> int:
    """Of one row by a weight."""
    return product.count * int(product.inner) * int(product.columns)


def plugin_counts(graph: gs.Graph) -> dict[str, int]:
    """The number of padfree nodes by operator."""
    return dict(Counter(node.op for node in graph.nodes if is_padfree(node, node.op)))


def coverage(graph: gs.Graph, analysis: Analysis, passes: tuple[PassResult, ...], original: Products) -> CoverageReport:
    """The report for a rewritten graph; `original` are the products of the graph that it was."""
    return CoverageReport(
        passes,
        _islands(graph, analysis, passes),
        {tensor.name: layout_of(analysis[tensor]).value for tensor in graph.outputs},
        plugin_counts(graph),
        original,
        products_of(graph, analysis),
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
