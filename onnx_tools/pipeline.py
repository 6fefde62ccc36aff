# SPDX-License-Identifier: Apache-2.0
"""Takes the graph of an original through all passes, with a check after each and the probe between them."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto

from .analysis import (
    Dims,
    IdRule,
    Wiring,
    add_domain,
    check_graph,
    copy_of,
    dims_of_shape,
    is_padfree,
    is_shared_input,
    is_token_input,
    limit_of,
    names_in_use,
    padding_rules,
    tidy,
    unread_inputs,
)
from .analysis.symbolic import Analysis, analyse
from .errors import RewriteError
from .files import Model
from .gemms import Gemms, gemms_of
from .importing import (
    LengthsInput,
    axis_groups,
    check_axes,
    import_model,
    lengths_among,
    name_outputs,
    put_mask,
    take_lengths,
    token_inputs_of,
)
from .match.values import Mask, mask_of
from .passes import (
    KEPT_MASKING,
    NORMALIZATION,
    Miss,
    Pass,
    PassResult,
    check_prefixes,
    interface_passes,
    packing_passes,
    preparation,
)
from .passes.base import boundary_of
from .traits import Traits, traits_of
from .verification.probe import PaddingIsReadError, probe

logger = logging.getLogger(__name__)

PASSES = {
    name: len((*NORMALIZATION, *preparation(name), *packing_passes(KEPT_MASKING[0]), *interface_passes(name, {}, ())))
    for name in ("packed", "padded")
}
"""How many passes each interface has."""


@dataclass(frozen=True)
class PassedGraph:
    """A graph after all passes. `origins`: tensor [T,...] -> the tensor [B,S,...] of the original that it replaces.

    `traits` and `gemms` are the original's, `original_dims` the sizes of every output in it, `mask` tells which of its
    slots are padding, and `unread_inputs` are the inputs whose values no output depends on.
    `lengths`: the input of lengths that the original has instead of a mask. `assumed`: what padded slots have to hold.
    `shared_inputs` are the inputs that are the same for a whole batch of the original, with their shapes.
    """

    graph: gs.Graph
    analysis: Analysis
    results: tuple[PassResult, ...]
    origins: Mapping[str, str]
    traits: Traits
    gemms: Gemms
    original_dims: tuple[Dims | None, ...]
    mask: Mask
    unread_inputs: tuple[str, ...] = ()
    lengths: LengthsInput | None = None
    assumed: Mapping[str, IdRule] = field(default_factory=dict)
    shared_inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphOptions:
    """Options of the passes.

    Attributes:
        interface: "packed" or "padded".
        mask: the input that the user calls the padding mask.
        contiguous: no padding lies between tokens.
        padding_id: padded slots hold this id, and may be read; None: they may hold anything, and must not be.
        shares: sequences may share prefixes.
        left_padded: padding lies before the tokens of a row, so that its last slot holds one.
        on_progress: called with the number of passes that are done, and that of all.
    """

    interface: str
    mask: str | None = None
    contiguous: bool = False
    padding_id: int | None = None
    shares: bool = False
    left_padded: bool = False
    on_progress: Callable[[int, int], object] = lambda _done, _of: None


def rewrite_graph(model: Model, options: GraphOptions) -> PassedGraph:
    """Runs all passes; the graph is checked after each. Raises RewriteError.

    If the graph reads padding after the last passes, these are tried again, with more nodes that stay padded.
    """
    try:
        return _rewrite(model, options)
    except RecursionError as error:
        raise RewriteError(
            f"the graph ({len(model.proto.graph.node)} nodes) holds expressions nested too deeply to be followed; "
            "simplify it (onnxruntime's offline optimisation, for one) and rewrite the result"
        ) from error


def _rewrite(model: Model, options: GraphOptions) -> PassedGraph:
    graph = import_model(model)
    token_inputs = token_inputs_of(model.proto)
    if any(len(axis_groups(model.proto, token_inputs, axis)) > 1 for axis in (0, 1)):
        check_axes(model, token_inputs)
    add_domain(graph)
    for name in _lengths_in(graph):
        other = copy_of(graph)
        lengths = put_mask(other, analyse(other), name)
        tidy(other)
        with contextlib.suppress(RewriteError):
            result = _pack(other, model, options)
            if result.mask.source == lengths.mask:
                return _with_lengths(result, lengths, options.interface)
    return _pack(graph, model, options)


def _lengths_in(graph: gs.Graph) -> list[str]:
    """Inputs that may hold lengths instead of a mask."""
    return [] if all(is_token_input(tensor) for tensor in graph.inputs) else lengths_among(graph, analyse(graph))


def _with_lengths(result: PassedGraph, lengths: LengthsInput, interface: str) -> PassedGraph:
    """The result with the original's input of lengths in place of the padded interface's mask."""
    if interface != "padded":
        return replace(result, lengths=lengths)
    take_lengths(result.graph, lengths)
    tidy(result.graph)
    return replace(result, analysis=analyse(result.graph), lengths=lengths)


def _pack(graph: gs.Graph, model: Model, options: GraphOptions) -> PassedGraph:
    """An imported graph after all passes."""
    first, *others = KEPT_MASKING
    progress = _PassRun(graph, options, names_in_use(graph))
    progress.prepare(options)
    try:
        return _with_output_names(progress.copy().finish(first), model.proto)
    except PaddingIsReadError as refused:
        for keep in others:
            with contextlib.suppress(PaddingIsReadError):
                return _with_output_names(progress.copy().finish(keep), model.proto)
        raise refused


def _with_output_names(result: PassedGraph, model: ModelProto) -> PassedGraph:
    """The result with the original's names of outputs, if the import changed them."""
    if not name_outputs(result.graph, model):
        return result
    tidy(result.graph)
    return replace(result, analysis=analyse(result.graph))


class _PassRun:
    """A graph on its way through the passes, and their results so far."""

    def __init__(self, graph: gs.Graph, options: GraphOptions, names: set[str]) -> None:
        self._graph, self._options = graph, options
        self._names = names  # the original's
        self._analysis: Analysis = analyse(graph)
        self._unread_inputs = unread_inputs(graph)
        self._shared_inputs = {str(item.name): tuple(item.shape) for item in graph.inputs if is_shared_input(item)}
        self._traits: Traits
        self._gemms: Gemms
        self._results: list[PassResult] = []
        self._passes_done = 0
        self._origins: dict[str, str] = {}
        self._pack_results: list[PassResult] = []  # results of the packing pass, shared by all copies
        self._mask = Mask(None)

    def copy(self) -> _PassRun:
        """A copy with a graph of its own; the weights are shared."""
        other = copy.copy(self)
        other._graph = copy_of(self._graph)
        other._analysis = self._analysis.of_copy(self._graph, other._graph)
        other._results, other._origins = list(self._results), dict(self._origins)
        return other

    def run(self, steps: Sequence[Pass]) -> None:
        """Runs passes in order."""
        for step in steps:
            before = Wiring(self._graph)
            result = step(self._graph, self._analysis)
            if result.replaced or not before.is_that_of(self._graph):
                self._tidy(result.name)
            logger.info("%s: %d replaced, %d missed", result.name, result.replaced, len(result.missed))
            if result.name == "attention":
                self._mask = mask_of(self._analysis[boundary_of(self._graph).mask])
            self._results.append(result)
            self._passes_done += 1
            self._options.on_progress(self._passes_done, PASSES[self._options.interface])

    def prepare(self, options: GraphOptions) -> None:
        """Runs the passes before packing, with a look at the original between them."""
        first, *others = NORMALIZATION
        self.run([first])
        self._traits = traits_of(self._graph, self._analysis)
        self.run(others)
        self._gemms = gemms_of(self._graph, self._analysis)  # sizes are known now, and all GEMMs are there
        longest, contiguous = self._traits.longest, options.contiguous
        steps = preparation(
            options.interface, options.mask, longest, contiguous=contiguous, left_padded=options.left_padded
        )
        self.run(steps)

    def _tidy(self, after: str) -> None:
        """Sorts, checks and analyses the graph that a pass has changed."""
        for node in self._graph.nodes:  # before nodes that were only needed between two passes are removed
            if is_padfree(node, "PadfreeUnpack") and node.outputs[0].name in self._names:
                self._origins[node.inputs[0].name] = node.outputs[0].name
        tidy(self._graph)
        self._analysis = check_graph(self._graph, after, self._analysis)

    def finish(self, keep: str) -> PassedGraph:
        """Runs the remaining passes, and the probe between them."""
        packing, *others = packing_passes(keep)
        self.run([packing])
        if self._results[-1] in self._pack_results:
            raise PaddingIsReadError("the same nodes stay padded as before")
        self._pack_results.append(self._results[-1])
        self.run(others)
        rules = self._probe() if self._options.padding_id is None else self._assume(self._options.padding_id)
        dims = tuple(dims_of_shape(self._analysis[tensor].shape) for tensor in self._graph.outputs)
        fillers = {name: rule.padding for name, rule in rules.items()}
        self.run(interface_passes(self._options.interface, fillers, self._unread_inputs, shares=self._options.shares))
        if self._options.shares:
            check_prefixes(self._results[-1])
        names = names_in_use(self._graph)
        origins = {name: origin for name, origin in self._origins.items() if name in names}
        results = tuple(self._results)
        return PassedGraph(
            graph=self._graph,
            analysis=self._analysis,
            results=results,
            origins=origins,
            traits=self._traits,
            gemms=self._gemms,
            original_dims=dims,
            mask=self._mask,
            unread_inputs=self._unread_inputs,
            assumed={} if self._options.padding_id is None else rules,
            shared_inputs=self._shared_inputs,
        )

    def _assume(self, padding_id: int) -> Mapping[str, IdRule]:
        """The ids that padded slots are assumed to hold, which nodes that stayed padded may read."""
        others = (self._mask.source if self._mask.plain else None, *self._unread_inputs)
        inputs = [tensor for tensor in self._graph.inputs if is_token_input(tensor) and tensor.name not in others]
        integers = [tensor for tensor in inputs if np.dtype(tensor.dtype).kind in "iu" and len(tensor.shape) == 2]
        return padding_rules({str(tensor.name): limit_of(self._graph, tensor.name) for tensor in integers}, padding_id)

    def _probe(self) -> Mapping[str, IdRule]:
        """The rules for ids that the nodes that stay padded need."""
        try:
            probed = probe(
                self._graph,
                self._analysis,
                right_padded_only=self._options.interface == "packed",
                special=self._traits.special,
            )
        except PaddingIsReadError as error:
            others = [miss.reason for item in self._results if item.name == "attention" for miss in item.missed[:3]]
            raise type(error)("; ".join(dict.fromkeys([str(error), *others]))) from None
        misses = tuple(Miss("padded part", f"{reason}: right-padded batches only") for reason in probed.reasons)
        self._results.append(PassResult("probe", 0, misses, right_padded=probed.reasons))
        return probed.rules
