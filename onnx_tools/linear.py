# SPDX-License-Identifier: Apache-2.0
"""Gives a rewritten model padfree's own GEMMs, for GPUs that PadfreeLinear has a kernel for."""

from __future__ import annotations

from collections.abc import Iterator

from .analysis import check_graph, tidy
from .analysis.symbolic import analyse
from .errors import RewriteError
from .files import Model
from .gemms import gemms_of
from .graph_model import GraphModel
from .operators import check_nodes
from .passes import Pass, PassResult
from .passes.linear.gates import gates
from .passes.linear.head_norms import head_norms
from .passes.linear.linear import linear
from .passes.linear.rotations import rotations
from .passes.norms import norm_folding, post_norms, token_rows
from .precision import check_element_types

_NAMED_ALWAYS = ("linear", "norm folding")
"""Passes that the report names even if they found nothing."""


def with_linear(model: Model, *, fold_norms: bool = True, fold_streams: bool = True) -> Model:
    """A copy of a rewritten model of any precision whose GEMMs of tokens are PadfreeLinear.

    With `fold_norms` the GEMMs apply the layer norms between them, where these have no other reader; without
    `fold_streams` they leave alone norms whose input is read elsewhere, too (norm_folding). The copy has no function
    bodies. Its metadata tells the number of operators, what the passes replaced, and why they replaced no more. Raises
    RewriteError for a model that `rewrite` did not make.
    """
    rewritten = GraphModel.of(model)
    add_linear(rewritten, fold_norms=fold_norms, fold_streams=fold_streams)
    exported = rewritten.export()
    check_nodes(exported.proto)
    check_element_types(exported.proto, rewritten.metadata["precision"])
    return exported


def add_linear(
    model: GraphModel, *, fold_norms: bool = True, fold_streams: bool = True, norm_heads: bool = False
) -> None:
    """Does the same to a graph, in place. With `norm_heads`, which is for Hopper, GEMMs also norm heads of Q and K."""
    graph, metadata = model.graph, model.metadata
    if not metadata:
        raise RewriteError("the model carries no padfree metadata; rewrite it first (padfree optimize)")
    precision, analysis, results = metadata["precision"], analyse(graph), list[PassResult]()
    for step in _steps(precision, fold_norms=fold_norms, streams=fold_streams, norm_heads=norm_heads):
        result = step(graph, analysis)
        if result.name in _NAMED_ALWAYS or result.replaced or result.missed:
            results.append(result)
            tidy(graph)
            analysis = check_graph(graph, result.name)

    coverage = metadata["coverage"]
    coverage["passes"] += [result.to_dict() for result in results]
    if "products" in coverage:
        coverage["products"]["rewritten"] = [item.to_dict() for item in gemms_of(graph, analysis).items]
    model.describe_nodes()


def _steps(precision: str, *, fold_norms: bool, streams: bool, norm_heads: bool) -> Iterator[Pass]:
    """The passes in their order: norms are folded when all GEMMs are there."""
    yield lambda graph, analysis: gates(graph, analysis, precision)
    yield lambda graph, analysis: linear(graph, analysis, precision)
    yield lambda graph, _: rotations(graph, precision)
    if norm_heads:
        yield lambda graph, _: head_norms(graph, precision)
    if fold_norms and streams:
        yield token_rows
        yield lambda graph, _: post_norms(graph)
    if fold_norms:
        yield lambda graph, _: norm_folding(graph, precision, streams=streams)
