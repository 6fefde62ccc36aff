# SPDX-License-Identifier: Apache-2.0
"""A rewritten model as a graph, converted once: GEMMs, quantisation and lowering work on it one after the other."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

from .analysis import copy_of, names_in_use
from .files import Model, export_model, import_graph, is_rewritten, read_metadata, write_metadata
from .operators import without_functions
from .report import plugin_counts


@dataclass(frozen=True, eq=False)
class GraphModel:
    """A model's graph without function bodies, and its metadata, which are changed in place.

    `source` is the model that it was made from, whose weights it shares.
    """

    graph: gs.Graph
    metadata: dict[str, Any]
    source: Model

    @classmethod
    def of(cls, model: Model) -> GraphModel:
        """The graph of a model. Raises RewriteError for metadata that is not JSON."""
        proto = model.proto
        plain = model.with_proto(without_functions(proto)) if proto.functions else model
        with G_LOGGER.suppress(G_LOGGER.ERROR):  # it warns of every tensor in bf16 or e4m3, although it keeps the type
            graph = import_graph(plain)
        return cls(graph, read_metadata(proto) if is_rewritten(proto) else {}, model)

    def copy(self) -> GraphModel:
        """A copy whose graph and metadata are its own; the weights are shared."""
        return GraphModel(copy_of(self.graph), copy.deepcopy(self.metadata), self.source)

    def describe_nodes(self) -> None:
        """Counts the graph's operators in the metadata, and leaves out origins of tensors that are gone."""
        names = names_in_use(self.graph)
        self.metadata["coverage"]["plugins"] = self.metadata["plugins"] = plugin_counts(self.graph)
        origins = self.metadata.get("origins", {})
        self.metadata["origins"] = {name: origin for name, origin in origins.items() if name in names}

    def export(self) -> Model:
        """The model that the graph has become; large weights stay where they are."""
        result = export_model(self.graph, self.source)
        if self.metadata:
            write_metadata(result.proto, self.metadata)
        return result
