# SPDX-License-Identifier: Apache-2.0
"""The coverage report: what was packed, what was not, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import onnx_graphsurgeon as gs

from .analysis import find_padfree, is_padfree, is_standard, layout_of, node_name, producer
from .analysis.symbolic import Analysis, Facts
from .cost import Lengths, packed_share
from .gemms import LINEAR, Gemms, gemms_of
from .passes import Miss, PassResult

IN_BETWEEN = "works between nodes that stay padded"
REFERENCE = Lengths(batch=1, mean=512.0, maximum=512)
"""Lengths for computing a share that does not depend on them, as long as all linear layers work on tokens."""


@dataclass(frozen=True)
class CoverageReport:
    """What a rewrite did.

    `islands` are the nodes that compute or deliver padded tokens, each with the reason. `notes` say what callers
    have to know beyond the names. `every_slot_counts`: no input tells what is padding, and padding is computed like
    tokens, as in the original. `original` and `rewritten` are the GEMMs of both graphs, which cost.py
    turns into FLOPs for given lengths.
    """

    passes: tuple[PassResult, ...]
    islands: tuple[Miss, ...]
    outputs: Mapping[str, str]
    plugins: Mapping[str, int]
    original: Gemms
    rewritten: Gemms
    notes: tuple[str, ...] = ()
    every_slot_counts: bool = False

    @property
    def packed_gemm_share(self) -> float | None:
        """The share of the linear layers' multiplications that run on packed tokens; None if none are counted."""
        return packed_share((item for item in self.rewritten.items if item.part == LINEAR), REFERENCE)

    @property
    def excluded_ids(self) -> dict[str, tuple[int, ...]]:
        """Padding ids by input that tokens must not have: the packed graph takes whatever it gets for a token."""
        ids_by_input: dict[str, set[int]] = {}
        for name, ids in (pair for item in self.passes for pair in item.excluded):
            ids_by_input.setdefault(name, set()).update(ids)
        return {name: tuple(sorted(ids)) for name, ids in ids_by_input.items()}

    @property
    def right_padded_because(self) -> tuple[str, ...]:
        """Why masks must be right-padded; empty where they need not be."""
        return tuple(dict.fromkeys(reason for item in self.passes for reason in item.right_padded))

    @property
    def right_padded_only(self) -> bool:
        """Whether masks must be right-padded: attention takes lengths instead, or a padded node reads masked slots."""
        return bool(self.right_padded_because)

    @property
    def left_padded_because(self) -> tuple[str, ...]:
        """Why the original's masks must be left-padded; empty where they need not be."""
        return tuple(dict.fromkeys(reason for item in self.passes for reason in item.left_padded))

    @property
    def contiguous_because(self) -> tuple[str, ...]:
        """Why masks must have no holes; empty where they may."""
        return tuple(dict.fromkeys(reason for item in self.passes for reason in item.contiguous))

    @property
    def complete(self) -> bool:
        """Whether nothing stayed padded that works on tokens."""
        return not self.islands and self.packed_gemm_share in (1.0, None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why nodes stay padded, each reason once; nodes between other padded ones have no reason of their own."""
        all_reasons = dict.fromkeys(item.reason for item in self.islands if not item.reason.endswith(IN_BETWEEN))
        return tuple(all_reasons) or tuple(item.reason for item in self.islands[:1])

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "notes": list(self.notes),
            "every_slot_counts": self.every_slot_counts,
            "complete": self.complete,
            "packed_gemm_share": self.packed_gemm_share,
            "passes": [item.to_dict() for item in self.passes],
            "islands": [asdict(item) for item in self.islands],
            "outputs": dict(self.outputs),
            "plugins": dict(self.plugins),
            "excluded_ids": {name: list(ids) for name, ids in self.excluded_ids.items()},
            "right_padded_only": self.right_padded_only,
            "right_padded_because": list(self.right_padded_because),
            "left_padded_because": list(self.left_padded_because),
            "contiguous_because": list(self.contiguous_because),
            "products": {
                "original": [item.to_dict() for item in self.original.items],
                "rewritten": [item.to_dict() for item in self.rewritten.items],
                "uncounted": sorted({*self.original.uncounted, *self.rewritten.uncounted}),
            },
        }

    def __str__(self) -> str:
        share = self.packed_gemm_share
        work = "no linear layer is counted" if share is None else f"{percent(share)} of the linear layers' work"
        lines = [*(f"note: {text}" for text in self.notes), f"packed: {work}"]
        lines += [f"{item.name}: {item.replaced} replaced, {len(item.missed)} missed" for item in self.passes]
        reasons = [miss.reason for item in self.passes for miss in item.missed]
        lines += [f"  missed: {reason}" for reason in reasons]
        lines += [f"padded: {reason}" for reason in self.reasons if reason not in reasons]
        count = len(self.islands)
        lines += [f"padded: {count} node{'s' * (count != 1)} in all"] if count else []
        lines += [f"output {name}: {layout}" for name, layout in self.outputs.items()]
        lines += [
            f"padding ids: '{name}' must not hold {', '.join(str(i) for i in ids[:3])} in a sequence"
            for name, ids in self.excluded_ids.items()
        ]
        lines += [f"masks must be right-padded: {reason}" for reason in self.right_padded_because]
        lines += [f"masks must be left-padded: {reason}" for reason in self.left_padded_because]
        lines += [f"masks must be contiguous: {reason}" for reason in self.contiguous_because]
        return "\n".join(lines)


def percent(share: float) -> str:
    """A share as text: rounded down, so that only a whole is 100.0 %."""
    return f"{math.floor(1000 * share) / 10:.1f} %"


def plugin_counts(graph: gs.Graph) -> dict[str, int]:
    """The number of padfree nodes by operator."""
    return dict(Counter(node.op for node in graph.nodes if is_padfree(node, node.op)))


def coverage(graph: gs.Graph, analysis: Analysis, passes: tuple[PassResult, ...], original: Gemms) -> CoverageReport:
    """The report for a rewritten graph; `original` are the GEMMs of the graph that it was made from."""
    return CoverageReport(
        passes,
        _padded_nodes(graph, analysis, passes),
        {tensor.name: layout_of(analysis[tensor]).value for tensor in graph.outputs},
        plugin_counts(graph),
        original,
        gemms_of(graph, analysis),
    )


def _padded_nodes(graph: gs.Graph, analysis: Analysis, passes: tuple[PassResult, ...]) -> tuple[Miss, ...]:
    """The nodes that read, make or deliver padded tokens in the final graph, each with the reason.

    The padded interface's own work does not count: integers [B,S] until they are packed, and outputs that are unpacked.
    """
    reasons = {miss.node: miss.reason for item in passes for miss in item.missed}
    delivering = _delivering(graph)
    below: set[str] = set()  # padded tensors that are computed from packed ones
    misses, padded_nodes = list[Miss](), list[gs.Node]()
    for node in graph.nodes:
        reads = any(tensor.name in below for tensor in node.inputs)
        padded = [tensor for tensor in node.outputs if _is_padded(analysis[tensor])]
        if is_padfree(node, "PadfreeUnpack") or (reads and not is_standard(node, "Shape", "Size")):
            below.update(tensor.name for tensor in padded)
        if is_padfree(node, node.op) or is_standard(node, "Cast", "Shape", "Size") or id(node) in delivering:
            continue
        if reads or any(_is_number(analysis[tensor]) for tensor in padded):
            padded_nodes.append(node)
    within = {id(node) for node in padded_nodes}
    for node in padded_nodes:
        name, adjacent = node_name(node), [producer(tensor) for tensor in node.inputs]
        adjacent += [reader for tensor in node.outputs for reader in tensor.outputs]
        where = IN_BETWEEN if any(id(item) in within for item in adjacent) else "works on padded tokens"
        misses.append(Miss(name, reasons.get(name, f"'{name}' ({node.op}) {where}")))
    if any(is_padfree(node, "PadfreeIndex") for node in graph.nodes):
        return tuple(misses)
    for tensor in graph.outputs:
        node = producer(tensor)
        if tensor.name in below and node is not None and (is_padfree(node, node.op) or id(node) in delivering):
            shape = ", ".join(str(size) for size in analysis[tensor].shape or ("?",))
            misses.append(Miss(node_name(node), f"the output '{tensor.name}' [{shape}] is delivered padded"))
    boundary_nodes = [node_name(node) for node in find_padfree(graph, "PadfreeUnpack")]
    return tuple(misses or (Miss(name, f"'{name}' (PadfreeUnpack) makes padded tokens") for name in boundary_nodes))


def _delivering(graph: gs.Graph) -> set[int]:
    """Nodes that only convert unpacked tokens to an output's type and order of axes."""
    delivering: set[int] = set()
    for node in reversed(graph.nodes):
        moves = is_standard(node, "Cast", "Identity", "Transpose")
        if moves and all(id(reader) in delivering for reader in node.outputs[0].outputs):
            delivering.add(id(node))
    unpacked = {node.outputs[0].name for node in find_padfree(graph, "PadfreeUnpack")}
    for node in graph.nodes:
        if id(node) in delivering and node.inputs[0].name in unpacked:
            unpacked.add(node.outputs[0].name)
        else:
            delivering.discard(id(node))
    return delivering


def _is_padded(facts: Facts) -> bool:
    """Whether the tensor is as long as the padded sequences; one of unknown shape is, unless it is constant."""
    if facts.shape is None:
        return not facts.constant
    return any("S" in size.atoms() for size in facts.shape)


def _is_number(facts: Facts) -> bool:
    is_number = facts.constant or facts.expr is not None or facts.elements is not None
    return not is_number and (facts.dtype or "float").startswith(("float", "bfloat"))
