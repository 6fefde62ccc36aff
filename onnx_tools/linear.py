# SPDX-License-Identifier: Apache-2.0
"""Gives a rewritten model padfree's own GEMMs, for GPUs that PadfreeLinear has a kernel for.

It starts from a message: files that were rewritten before are read as one, and types are converted on messages, for
which ONNX infers them. The conversion to a graph and back takes 14 ms for BERT-base.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from onnx_graphsurgeon.logger import G_LOGGER

from .analysis.check import check_graph
from .analysis.graph import names_in_use, tidy
from .analysis.symbolic import analyse
from .errors import RewriteError
from .files.graph_io import export_model, import_graph
from .files.metadata import is_rewritten, read_metadata, write_metadata
from .files.model import Model
from .gemms import gemms_of
from .operators import check_nodes, without_functions
from .passes import Pass, PassResult
from .passes.linear.gates import gates
from .passes.linear.linear import linear
from .passes.linear.rotations import rotations
from .passes.norms.norm_folding import norm_folding
from .precision.element_types import check_element_types
from .report import plugin_counts

_NAMED_ALWAYS = ("linear", "norm folding")
"""Passes that the report names even if they found nothing."""


def with_linear(model: Model, *, fold_norms: bool = True, fold_streams: bool = True) -> Model:
    """A copy of a rewritten model of any precision whose GEMMs of tokens are PadfreeLinear.

    With `fold_norms` the GEMMs apply the layer norms between them, where these have no other reader; without
    `fold_streams` they leave alone norms whose input is read elsewhere, too (norm_folding). The copy has no function
    bodies. Its metadata tells the number of operators, what the passes replaced, and why they replaced no more. Raises
    RewriteError for a model that `rewrite` did not make.
    """
    proto = model.proto
    if not is_rewritten(proto):
        raise RewriteError("the model carries no padfree metadata; rewrite it first (padfree optimize)")
    metadata = read_metadata(proto)
    with G_LOGGER.suppress(G_LOGGER.ERROR):  # it warns of every bfloat16 tensor, although it keeps the type
        graph = import_graph(model.with_proto(without_functions(proto)))
    precision, analysis, results = metadata["precision"], analyse(graph), list[PassResult]()
    for step in _steps(precision, fold_norms=fold_norms, streams=fold_streams):
        result = step(graph, analysis)
        if result.name in _NAMED_ALWAYS or result.replaced or result.missed:
            results.append(result)
            tidy(graph)
            analysis = check_graph(graph, result.name)

    names = names_in_use(graph)
    coverage = metadata["coverage"]
    for result in results:
        misses = [asdict(miss) for miss in result.missed]
        coverage["passes"].append({"name": result.name, "replaced": result.replaced, "missed": misses})
    if "products" in coverage:
        coverage["products"]["rewritten"] = [item.to_dict() for item in gemms_of(graph, analysis).items]
    coverage["plugins"] = metadata["plugins"] = plugin_counts(graph)
    metadata["origins"] = {name: origin for name, origin in metadata.get("origins", {}).items() if name in names}

    exported = export_model(graph, model)
    write_metadata(exported.proto, metadata)
    check_nodes(exported.proto)
    check_element_types(exported.proto, precision)
    return exported


def _steps(precision: str, *, fold_norms: bool, streams: bool) -> Iterator[Pass]:
    """The passes in their order: norms are folded when all GEMMs are there."""
    yield lambda graph, analysis: gates(graph, analysis, precision)
    yield lambda graph, analysis: linear(graph, analysis, precision)
    yield lambda graph, _: rotations(graph, precision)
    if fold_norms:
        yield lambda graph, _: norm_folding(graph, precision, streams=streams)
