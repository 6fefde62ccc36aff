# SPDX-License-Identifier: Apache-2.0
"""Rewrites a padded encoder into one that works on packed tokens."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto
from padfree.contract.names import FORMAT, HALF, INTERFACES, MASKS, PRECISIONS

from .analysis.check import check_graph
from .analysis.graph import add_domain, dtype_name, is_padfree, names_in_use, tidy
from .analysis.kept import Dims, dims_of_shape
from .analysis.limits import first_width, limit_of
from .analysis.position_limits import longest_sequence
from .analysis.special_ids import SpecialIds, special_ids
from .analysis.symbolic import Analysis, analyse
from .errors import RewriteError
from .files.graph_io import export_model
from .files.metadata import text_entry, write_metadata
from .files.model import Model
from .files.model_file import check_model_data, open_model
from .files.weights import Storage
from .importing.axes import check_axes
from .importing.canonical import name_outputs, runnable
from .importing.fixed_axes import fixed_sizes
from .importing.fixed_axes.sizes import EXPORT_AGAIN
from .importing.importing import import_model, token_inputs_of
from .operators import add_functions, check_nodes, with_functions
from .operators.functions import OVERLOAD_IR_VERSION
from .passes import KEPT_MASKING, Miss, Pass, PassResult, interface_passes, packing_passes, preparation
from .passes.base import boundary_of
from .passes.masks.mask_values import Mask, mask_of
from .precision.widen import narrow_outputs, widen
from .products import Products, products_of
from .report import CoverageReport, coverage
from .verification.half_precision import convert_and_check
from .verification.probe import PaddingIsReadError, probe
from .verification.sample_batches import sample_of
from .verification.verify import verify_ids

logger = logging.getLogger(__name__)

VERSION = "0.1.0"


@dataclass(frozen=True)
class RewriteResult:
    """A rewritten model and what was done to it."""

    model: ModelProto
    report: CoverageReport


@dataclass(frozen=True)
class Rewritten:
    """A rewritten model, its weights wherever they lie and without function bodies, and what was done to it."""

    model: Model
    report: CoverageReport
    precision: str


@dataclass(frozen=True)
class PassedGraph:
    """A graph after all passes. `origins`: tensor [T,...] -> the tensor [B,S,...] of the original that it replaces.

    `products` are the original's matrix products, `longest` is the longest sequence's length that tables allow,
    `original_dims` are the sizes of every output in the original, `mask` tells which slots of it are padding, and
    `special` which ids it looks for.
    """

    graph: gs.Graph
    analysis: Analysis
    results: tuple[PassResult, ...]
    origins: Mapping[str, str]
    products: Products
    longest: int | None
    original_dims: tuple[Dims | None, ...]
    mask: Mask
    special: Mapping[str, SpecialIds]


def rewrite_graph(model: Model, interface: str, mask: str | None = None, *, contiguous: bool = False) -> PassedGraph:
    """Runs all passes; the graph is checked after each. Raises RewriteError.

    `mask` is the input that the user calls the padding mask; `contiguous`: no padding lies between tokens.
    What the last passes make of it may read padding; then they are tried again, with more nodes that stay padded.
    """
    graph = import_model(model)
    check_axes(model, token_inputs_of(model.proto))
    add_domain(graph)
    first, *others = KEPT_MASKING
    prepared = _Progress(graph, interface, names_in_use(graph))
    prepared.run(preparation(interface, mask, prepared.longest, contiguous=contiguous))
    try:
        return _named(prepared.copy().finish(first), model.proto)
    except PaddingIsReadError as refused:
        for keep in others:
            with contextlib.suppress(PaddingIsReadError):
                return _named(prepared.copy().finish(keep), model.proto)
        raise refused


def _named(passed: PassedGraph, model: ModelProto) -> PassedGraph:
    """The same with the outputs' names of the original, where the import gave them others."""
    if not name_outputs(passed.graph, model):
        return passed
    tidy(passed.graph)
    return replace(passed, analysis=analyse(passed.graph))


class _Progress:
    """A graph on its way through the passes, and what they have said so far."""

    def __init__(self, graph: gs.Graph, interface: str, names: set[str]) -> None:
        self._graph = graph
        self._interface = interface
        self._names = names  # of the original
        self._analysis: Analysis = analyse(graph)
        self.longest = longest_sequence(graph, self._analysis)
        self._special = special_ids(graph)
        self._products: Products | None = None
        self._results: list[PassResult] = []
        self._origins: dict[str, str] = {}
        self._tried: list[PassResult] = []  # results of the packing pass, of all copies
        self._mask = Mask(None)

    def copy(self) -> _Progress:
        """The same, with a graph of its own; the weights are shared."""
        other = copy.copy(self)
        other._graph = self._graph.copy()
        other._analysis = self._analysis.of_copy(self._graph, other._graph)
        other._results, other._origins = list(self._results), dict(self._origins)
        return other

    def run(self, steps: Sequence[Pass]) -> None:
        """Runs passes in order."""
        for step in steps:
            result = step(self._graph, self._analysis)
            for node in self._graph.nodes:  # before those that were only needed between two passes are removed
                if is_padfree(node, "PadfreeUnpack") and node.outputs[0].name in self._names:
                    self._origins[node.inputs[0].name] = node.outputs[0].name
            tidy(self._graph)
            self._analysis = check_graph(self._graph, result.name, self._analysis)
            logger.info("%s: %d replaced, %d missed", result.name, result.replaced, len(result.missed))
            if result.name == "attention":
                self._mask = mask_of(self._analysis[boundary_of(self._graph).mask])
            self._results.append(result)
            if self._products is None:  # the first pass has made sizes known and changed no product
                self._products = products_of(self._graph, self._analysis)

    def finish(self, keep: str) -> PassedGraph:
        """The remaining passes, and between them the probe."""
        packing, *others = packing_passes(keep)
        self.run([packing])
        if self._results[-1] in self._tried:
            raise PaddingIsReadError("the same nodes stay padded as before")
        self._tried.append(self._results[-1])
        self.run(others)
        self._probe()
        dims = tuple(dims_of_shape(self._analysis[tensor].shape) for tensor in self._graph.outputs)
        self.run(interface_passes(self._interface))
        if self._products is None:
            raise AssertionError("there is no pass")
        names = names_in_use(self._graph)
        kept = {name: origin for name, origin in self._origins.items() if name in names}
        results = tuple(self._results)
        return PassedGraph(
            self._graph, self._analysis, results, kept, self._products, self.longest, dims, self._mask, self._special
        )

    def _probe(self) -> None:
        try:
            reasons = probe(
                self._graph, self._analysis, right_padded_only=self._interface == "packed", special=self._special
            )
        except PaddingIsReadError as error:
            missed = [miss.reason for item in self._results if item.name == "attention" for miss in item.missed[:3]]
            raise PaddingIsReadError("; ".join(dict.fromkeys([str(error), *missed]))) from None
        found = tuple(Miss("padded part", f"{reason}: right-padded batches only") for reason in reasons)
        self._results.append(PassResult("probe", 0, found, right_padded=reasons))


def rewrite(
    model: str | os.PathLike[str] | ModelProto,
    *,
    interface: str = "packed",
    precision: str = "fp32",
    strict: bool = False,
    verify: bool = True,
    seed: int = 0,
    mask: str | None = None,
    masks: str = "any",
) -> RewriteResult:
    """Rewrites an exported encoder so that it computes no padding.

    Args:
        model: an ONNX model or its path.
        interface: "packed" (tokens [T] and lengths) or "padded" (the original inputs and outputs).
        precision: type of weights and activations in the result: "fp32", "fp16", "bf16", or "half" for fp16 unless it
            costs products their kernels, and bf16 then.
        strict: whether anything that stays padded is an error.
        verify: whether original and rewritten model are run in onnxruntime on ragged batches and compared.
        seed: of the batches that `verify` draws.
        mask: the padding mask's input, where attention does not prove which one that is: 1 at tokens, 0 at padding.
        masks: of the padded interface, "any" or "contiguous": no padding lies between the tokens of a row, as in left-
            and right-padded masks. Then attention with windows and biases by distance is packed, too.

    Raises RewriteError where the model cannot be rewritten (VerificationError: the results differ).
    """
    _check_options(interface, precision, masks)
    found = rewrite_model(
        _given(model),
        interface=interface,
        precision=precision,
        strict=strict,
        verify=verify,
        seed=seed,
        mask=mask,
        masks=masks,
    )
    return RewriteResult(finished(found.model, found.precision), found.report)


def finished(model: Model, precision: str) -> ModelProto:
    """A rewritten model as files hold it: with all weights, and with bodies for its operators."""
    result = model.whole()
    add_functions(result, precision)
    model.weights.check_files()
    return result


def _given(model: str | os.PathLike[str] | ModelProto) -> Model:
    if not isinstance(model, ModelProto):
        return open_model(model, Storage.MEMORY)
    check_model_data(Model(model), "the model")
    return Model.of(model)


def _check_options(interface: str, precision: str, masks: str) -> None:
    if interface not in INTERFACES:
        raise RewriteError(f"interface is '{interface}', allowed are {', '.join(INTERFACES)}; choose one of them")
    if masks not in MASKS:
        raise RewriteError(f"masks is '{masks}', allowed are {', '.join(MASKS)}; choose one of them")
    precisions = (*PRECISIONS, HALF)
    if precision not in precisions:
        raise RewriteError(f"precision is '{precision}', allowed are {', '.join(precisions)}; choose one of them")


def rewrite_model(
    model: Model,
    *,
    interface: str,
    precision: str,
    strict: bool,
    verify: bool,
    seed: int = 0,
    mask: str | None = None,
    masks: str = "any",
) -> Rewritten:
    """As rewrite, but not finished: more passes may follow, and TensorRT takes no bodies.

    Weights that lie outside of the model's message stay outside of the result's. Whoever is done with the result calls
    `finished`, or check_files() of its weights.
    """
    _check_options(interface, precision, masks)
    if verify:
        model.weights.align()
    given, model = model.proto, widen(model)
    original = model.with_proto(runnable(model.proto))
    source = original.proto
    try:
        passed = rewrite_graph(original, interface, mask, contiguous=masks == "contiguous")
    except RecursionError as error:
        raise RewriteError(
            f"the graph ({len(source.graph.node)} nodes) holds expressions nested too deeply to be followed; "
            "simplify it (onnxruntime's offline optimisation, for one) and rewrite the result"
        ) from error
    graph, analysis = passed.graph, passed.analysis
    report = coverage(graph, analysis, passed.results, passed.products)
    if strict and not report.complete:
        count, reasons = len(report.islands), "; ".join(report.reasons[:5])
        raise RewriteError(
            f"{count} node{'s' * (count != 1)} stayed padded: {reasons}; rewrite without strict to accept that"
        )
    fixed = fixed_sizes(source, token_inputs_of(source))
    if passed.mask.source is None and fixed.sequence is not None:
        raise RewriteError(
            f"the model has no mask, and its inputs have the fixed size {fixed}: every sequence has {fixed.sequence} "
            f"tokens, and nothing is padding; {EXPORT_AGAIN}, or with an attention_mask"
        )
    limits = [fixed.sequence, passed.longest]
    longest = min((limit for limit in limits if limit is not None), default=None)
    described = _metadata(passed, report, interface, precision, longest)
    metadata = {**described, "masks": masks, "origins": dict(passed.origins), **text_entry(source)}
    for output, dims in zip(metadata["outputs"], passed.original_dims, strict=True):
        output["original_dims"] = dims
    result = _exported(graph, analysis, original)
    if verify:
        runs = result.with_proto(with_functions(result.proto))
        _, rules = verify_ids(original, runs, metadata, seed=seed, special=passed.special)
        if rules:
            metadata["id_rules"] = {name: rule.to_dict() for name, rule in rules.items()}
    if precision != "fp32":
        sample = sample_of(source, metadata, seed=seed) if verify else None
        made = convert_and_check(result, precision, sample)
        result, precision = made.model, made.precision
        metadata |= {"precision": precision, "kept_float32": dict(made.kept_float32)}
        if made.against_fp16:
            metadata["bf16_because"] = made.against_fp16
    proto = result.proto
    narrow_outputs(proto, given)
    types = {value.name: value.type.tensor_type for value in proto.graph.output}
    for output in metadata["outputs"]:
        output["dtype"] = dtype_name(types[output["name"]].elem_type)
        output["shape"] = [dim.dim_value or None for dim in types[output["name"]].shape.dim]
    write_metadata(proto, metadata)
    return Rewritten(result, report, precision)


def _exported(graph: gs.Graph, analysis: Analysis, original: Model) -> Model:
    """The graph as a model, with the original's metadata."""
    _write_shapes(graph, analysis)
    result = export_model(graph, original)
    proto = result.proto
    proto.ir_version = max(proto.ir_version, OVERLOAD_IR_VERSION)  # finished files have them
    proto.producer_name, proto.producer_version = "padfree", VERSION
    check_nodes(proto)
    return result


def _write_shapes(graph: gs.Graph, analysis: Analysis) -> None:
    """Writes what is known of types and shapes at the tensors."""
    for tensor in graph.tensors().values():
        if isinstance(tensor, gs.Variable):
            facts = analysis[tensor]
            if facts.dtype is not None:
                tensor.dtype = np.dtype(facts.dtype)
            tensor.shape = None if facts.shape is None else [_size(str(size), size.constant()) for size in facts.shape]


def _size(text: str, constant: int | None) -> int | str | None:
    return constant if constant is not None else text


def _metadata(
    passed: PassedGraph, report: CoverageReport, interface: str, precision: str, longest: int | None
) -> dict[str, Any]:
    """The description of the result for whoever builds or runs it; `longest` is the longest sequence's length."""
    graph, analysis = passed.graph, passed.analysis
    inputs = [_input(graph, tensor, interface, passed.mask) for tensor in graph.inputs]
    limits = {item["name"]: item["limit"] for item in inputs}
    return {
        "format": FORMAT,
        "version": VERSION,
        "interface": interface,
        "precision": precision,
        "inputs": inputs,
        "outputs": [
            {
                "name": tensor.name,
                "layout": report.outputs[tensor.name],
                "dtype": str(analysis[tensor].dtype),
                "dims": dims_of_shape(analysis[tensor].shape),
            }
            for tensor in graph.outputs
        ],
        "mask": passed.mask.described(limits.get(passed.mask.source)),
        "max_positions": longest,
        "hidden_size": first_width(analysis, graph),
        "num_layers": report.plugins.get("PadfreeAttention", 0),
        "coverage": report.to_dict(),
        "plugins": dict(report.plugins),
    }


def _input(graph: gs.Graph, tensor: gs.Tensor, interface: str, mask: Mask) -> dict[str, Any]:
    role = "tokens"
    if interface == "packed" and tensor.name in ("seq_lens", "max_seqlen"):
        role = tensor.name
    elif interface == "padded" and tensor.name == mask.source and mask.plain:
        role = "mask"
    limit = limit_of(graph, tensor.name) if role == "tokens" else None
    return {"name": tensor.name, "role": role, "limit": limit, "dtype": np.dtype(tensor.dtype).name}
