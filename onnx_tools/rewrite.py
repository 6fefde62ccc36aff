# SPDX-License-Identifier: Apache-2.0
"""Rewrites a padded encoder into one that works on packed tokens."""

from __future__ import annotations

import contextlib
import copy
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import ModelProto
from padfree.contract.phases import HALVING, REWRITING, VERIFYING, Phases

from .analysis import PADDING_IDS, copy_of
from .analysis.symbolic import Analysis
from .description import VERSION, describe, describe_types, measurement
from .errors import RewriteError, VerificationError
from .files import (
    Model,
    Storage,
    check_model_data,
    definition_entry,
    export_model,
    open_model,
    read_metadata,
    write_metadata,
)
from .graph_model import GraphModel
from .importing import check_not_rewritten, original_of, rows_of_one_number
from .match.masks import UnprovedMaskError, mask_advice
from .notes import (
    NOTE_ON_LEFT_PADDING,
    every_slot_counts,
    note_on_definition,
    note_on_padding,
    note_on_refuted_padding,
    notes_on,
    notes_on_rows,
)
from .operators import OVERLOAD_IR_VERSION, add_functions, check_nodes, with_functions
from .options import RewriteOptions
from .padding_ids import ids_of_zeros
from .pipeline import GraphOptions, PassedGraph, rewrite_graph
from .precision import narrow_outputs
from .report import CoverageReport, coverage
from .varseqlen import VARSEQLEN, take_varseqlen
from .verification import (
    LARGEST_ERRORS,
    RELATIVE_TOLERANCE,
    DifferError,
    PaddingIsReadError,
    PaddingMattersError,
    UnknownSizesError,
    Verification,
    convert_and_check,
    sample_of,
    verify_assumed,
    verify_ids,
)


@dataclass(frozen=True)
class RewriteResult:
    """A rewritten model and what was done to it."""

    model: ModelProto
    report: CoverageReport


@dataclass(frozen=True)
class RewrittenModel:
    """A rewritten model without function bodies, as the graph that lowering goes on with, and what was done to it.

    `exact` is the same model before its types were converted, if that was asked for.
    """

    graph: GraphModel
    report: CoverageReport
    precision: str
    exact: Model | None = None

    @property
    def model(self) -> Model:
        """The same as a message, its weights wherever they lie; whatever is done to the graph does not change it."""
        return self.graph.source


def rewrite(
    model: str | os.PathLike[str] | ModelProto,
    options: RewriteOptions | None = None,
    *,
    interface: str = "packed",
    precision: str = "fp32",
    strict: bool = False,
    verify: bool | str = True,
    seed: int = 0,
    mask: str | None = None,
    masks: str = "any",
    padding_id: int | None = None,
    shared_prefixes: bool = False,
) -> RewriteResult:
    """Rewrites an exported encoder so that it computes no padding.

    Args:
        model: an ONNX model or its path.
        options: all of the keywords as one value, instead of single ones.
        interface: see RewriteOptions, which describes all keywords.
        precision: see RewriteOptions.
        strict: see RewriteOptions.
        verify: see RewriteOptions.
        seed: see RewriteOptions.
        mask: RewriteOptions.mask_input: the padding mask's input, 1 at tokens and 0 at padding.
        masks: RewriteOptions.mask_form: "any", or "contiguous", with which attention with windows and biases by
            distance is packed in the padded interface, too.
        padding_id: see RewriteOptions.
        shared_prefixes: see RewriteOptions.

    Raises RewriteError if the model cannot be rewritten (VerificationError: the results differ), or if options are
    given both ways.
    """
    keywords = RewriteOptions(interface, precision, strict, verify, seed, mask, masks, padding_id, shared_prefixes)
    if options is not None and keywords != RewriteOptions():
        raise RewriteError("options are given as a value and as keywords; give one of the two")
    all_options = options or keywords
    all_options.check()
    result = rewrite_model(_open(model), all_options)
    return RewriteResult(finish(result.model, result.precision), result.report)


def finish(model: Model, precision: str) -> ModelProto:
    """A rewritten model as files hold it: with all weights, and with bodies for its operators."""
    result = model.whole()
    add_functions(result, precision)
    model.weights.check_files()
    return result


def with_bodies(model: Model, precision: str) -> Model:
    """The model with bodies for its operators, as after `finish`, but with the weights wherever they lie."""
    return model.with_proto(with_functions(model.proto, precision))


def _open(model: str | os.PathLike[str] | ModelProto) -> Model:
    if not isinstance(model, ModelProto):
        original = open_model(model, Storage.MEMORY)
        check_not_rewritten(original.proto, f"'{os.fspath(model)}'")
        return original
    check_model_data(Model(model), "the model")
    return Model.of(model)


def rewrite_model(
    model: Model,
    options: RewriteOptions,
    *,
    keep_exact: bool = False,
    phases: Phases | None = None,
) -> RewrittenModel:
    """Rewrites as `rewrite` does, but does not finish the model: more passes may follow, and TensorRT takes no bodies.

    With `keep_exact`, the result also holds the model as it was before its types were converted, with its weights.

    Weights that lie outside of the model's message stay outside of the result's. Whoever is done with the result calls
    `finish`, or check_files() of its weights. `phases` records the seconds of each phase.
    """
    options.check()
    if options.verify:
        model.weights.align()
    original, request = original_of(model), _Request(options, phases or Phases())
    rewriting = _rewritten_graph(original.model, request)
    graph, metadata, result, exact = rewriting.graph, rewriting.metadata, rewriting.model, None
    if original.unquantized is not None:
        metadata["unquantized"] = original.unquantized.to_dict()
    precision = options.precision
    if precision != "fp32":
        exact = _exact(rewriting, request) if keep_exact else None
        with request.phases.measure(HALVING):
            sample = sample_of(original.model.proto, metadata, seed=options.seed) if options.verify else None
            half = convert_and_check(graph, result, precision, sample)
        result, precision = half.model, half.precision
        metadata |= {"precision": precision, "kept_float32": dict(half.kept_float32)}
        if half.against_fp16:
            metadata["bf16_because"] = half.against_fp16
        if half.errors:
            costs = measurement(half.errors, LARGEST_ERRORS[precision])
            typical = {name: float(f"{error:.3g}") for name, error in half.typical.items() if np.isfinite(error)}
            metadata["verification"]["half_precision"] = {**costs, "typical": typical}
    is_exported = not narrow_outputs(graph, original.half) and options.interface != VARSEQLEN
    describe_types(metadata, graph)
    if options.interface == VARSEQLEN:
        take_varseqlen(graph, metadata)
    result = result if is_exported else export_model(graph, result)
    write_metadata(result.proto, metadata)
    rewritten = GraphModel(graph, read_metadata(result.proto), result)
    return RewrittenModel(rewritten, rewriting.report, precision, result if keep_exact and exact is None else exact)


def _exact(rewriting: _Rewriting, request: _Request) -> Model:
    """The model before its types are converted, with the inputs that the result will have."""
    if request.options.interface != VARSEQLEN:
        return rewriting.model
    graph = copy_of(rewriting.graph)
    take_varseqlen(graph, copy.deepcopy(rewriting.metadata))
    return export_model(graph, rewriting.model)


@dataclass(frozen=True)
class _Request:
    """How a graph is rewritten and verified; `phases` records the seconds of each phase."""

    options: RewriteOptions
    phases: Phases

    @property
    def interface(self) -> str:
        """The interface of the graph that is rewritten: NVIDIA's inputs are given to a packed graph."""
        return "packed" if self.options.interface == VARSEQLEN else self.options.interface

    def with_options(self, **changes: Any) -> _Request:
        """The same request with other options."""
        return replace(self, options=replace(self.options, **changes))


@dataclass(frozen=True)
class _Rewriting:
    """A rewritten model in float32, with its graph, metadata and report."""

    model: Model
    graph: gs.Graph
    metadata: dict[str, Any]
    report: CoverageReport


def _rewritten_graph(original: Model, request: _Request) -> _Rewriting:
    """Rewrites and verifies a model. Raises RewriteError.

    Where no attention proves the mask, inputs that may be it are tried; the error advises those that the model can be
    rewritten with.
    """
    try:
        return _with_any_padding(original, request)
    except UnprovedMaskError as unproved:
        refusals = {name: _refusal_with(name, original, request) for name in unproved.candidates}
        helping = [name for name, refusal in refusals.items() if refusal is None]
        if helping:
            raise RewriteError(f"{unproved.facts}; {mask_advice(helping)}") from None
        refusals_text = "; ".join(f"with --mask {name}: {refusal}" for name, refusal in refusals.items())
        raise RewriteError(f"{refusals_text}; and {unproved.facts}") from None


def _refusal_with(mask: str, original: Model, request: _Request) -> RewriteError | None:
    """Why a model cannot be rewritten with this mask; None where it can."""
    try:
        _with_any_padding(original, request.with_options(mask_input=mask))
    except RewriteError as error:
        return error
    return None


def _with_any_padding(original: Model, request: _Request) -> _Rewriting:
    """Rewrites and verifies a model; if it reads padding, with what tokenizers fill it with. Raises RewriteError.

    If it reads the last slot of every sequence, padding may lie before the tokens instead. What nobody has asked for is
    always verified, even if nothing else is.
    """
    try:
        return _with_padding(original, request, None)
    except (PaddingIsReadError, PaddingMattersError) as refused:
        careful = request.with_options(verify=request.options.verify or True)
        try:
            return _with_padding(original, careful, None, left_padded=True)
        except VerificationError:
            refused = type(refused)(f"{refused}; {NOTE_ON_LEFT_PADDING}")
        except RewriteError:
            pass  # padding is read elsewhere, too
        named_padding = request.options.padding_id
        candidates = (
            dict.fromkeys((*PADDING_IDS, *ids_of_zeros(original))) if named_padding is None else (named_padding,)
        )
        if named_padding is not None:
            careful = request
        refuted: list[int] = []
        for padding_id in candidates:
            with contextlib.suppress(RewriteError):  # other errors are not about padding: the original may not run
                try:
                    return _with_padding(original, careful, padding_id)
                except (DifferError, PaddingIsReadError):
                    refuted.append(padding_id)
        if isinstance(refused, UnknownSizesError) or not refuted:
            raise refused
        note = note_on_refuted_padding(refuted, was_named=named_padding is not None)
        raise type(refused)(f"{refused}; {note}") from refused


def _with_padding(
    original: Model, request: _Request, padding_id: int | None, *, left_padded: bool = False
) -> _Rewriting:
    """Rewrites and verifies a model whose padded slots hold anything, or this id.

    With `left_padded`, raises PaddingIsReadError if the model does not take the last slots of left-padded sequences.
    """
    options_asked, interface = request.options, request.interface
    options = GraphOptions(
        interface,
        options_asked.mask_input,
        options_asked.mask_form == "contiguous",
        padding_id,
        options_asked.shared_prefixes,
        left_padded,
        on_progress=request.phases.report,
    )
    with request.phases.measure(REWRITING):
        result_graph = rewrite_graph(original, options)
        assumed = result_graph.assumed
        notes = [note for note in (note_on_definition(definition_entry(original.proto)),) if note]
        notes += [note_on_padding(assumed)] if assumed else []
        report = replace(
            coverage(result_graph.graph, result_graph.analysis, result_graph.results, result_graph.gemms),
            notes=(*notes, *notes_on_rows(rows_of_one_number(original.proto)), *notes_on(result_graph, interface)),
            every_slot_counts=every_slot_counts(result_graph, interface),
        )
        if left_padded and not report.left_padded_because:
            raise PaddingIsReadError("no last slot is read as a row per sequence")
        if options_asked.strict and not report.complete:
            count, reasons = len(report.islands), "; ".join(report.reasons[:5])
            raise RewriteError(
                f"{count} node{'s' * (count != 1)} stayed padded: {reasons}; rewrite without strict to accept that"
            )
        metadata = describe(
            result_graph,
            report,
            original.proto,
            interface=interface,
            precision=options_asked.precision,
            masks=options_asked.mask_form,
        )
        result = _export(result_graph.graph, result_graph.analysis, original)
    rules = assumed
    if options_asked.verify:
        with request.phases.measure(VERIFYING):
            verification = _verify(original, result, metadata, result_graph, request)
        rules = verification.rules
        metadata["verification"] = measurement(verification.errors, RELATIVE_TOLERANCE)
        if verification.shortened_models is not None:
            counts = {"nodes": verification.shortened_models.nodes, "of": verification.shortened_models.of}
            metadata["verification"]["long_sequences"] = counts
        if verification.parts > 1:
            metadata["verification"]["parts"] = verification.parts
    if rules:
        metadata["id_rules"] = {name: rule.to_dict() for name, rule in rules.items()}
    return _Rewriting(result, result_graph.graph, metadata, report)


def _verify(
    original: Model, result: Model, metadata: dict[str, Any], result_graph: PassedGraph, request: _Request
) -> Verification:
    """Compares original and rewritten model. Raises VerificationError."""
    runs = result.with_proto(with_functions(result.proto))
    how: dict[str, Any] = {
        "seed": request.options.seed,
        "whole": request.options.whole,
        "on_progress": request.phases.report,
    }
    if result_graph.assumed:
        return verify_assumed(original, runs, metadata, result_graph.assumed, **how)
    return verify_ids(original, runs, metadata, special=result_graph.traits.special, **how)


def _export(graph: gs.Graph, analysis: Analysis, original: Model) -> Model:
    """The graph as a model, with the original's metadata."""
    _write_shapes(graph, analysis)
    result = export_model(graph, original)
    proto = result.proto
    proto.ir_version = max(proto.ir_version, OVERLOAD_IR_VERSION)  # finished files have overloads
    proto.producer_name, proto.producer_version = "padfree", VERSION
    check_nodes(proto)
    return result


def _write_shapes(graph: gs.Graph, analysis: Analysis) -> None:
    """Writes the known types and shapes into the tensors."""
    for tensor in graph.tensors().values():
        if isinstance(tensor, gs.Variable):
            facts = analysis[tensor]
            if facts.dtype is not None:
                tensor.dtype = np.dtype(facts.dtype)
            tensor.shape = None if facts.shape is None else [_size(str(size), size.constant()) for size in facts.shape]


def _size(text: str, constant: int | None) -> int | str | None:
    return constant if constant is not None else text
