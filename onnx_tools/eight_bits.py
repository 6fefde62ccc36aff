# SPDX-License-Identifier: Apache-2.0
"""Quantises a rewritten model to e4m3 or int8: calibration, losses, the new graph, and what the whole model loses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .analysis import check_graph, tidy
from .errors import RewriteError
from .files import Model, write_metadata
from .graph_model import GraphModel
from .importing import raise_opset_of_graph
from .importing.quantized import StoredGemm
from .linear import add_linear
from .operators import check_nodes
from .precision import check_element_types
from .quantization import (
    AS_MEASURED,
    LARGEST_NORM_LOSS,
    LARGEST_STREAM_LOSS,
    BeginSteps,
    Effect,
    Feeds,
    Format,
    QuantizationOptions,
    QuantizedWeights,
    Selection,
    Step,
    TensorScale,
    check_effects,
    choose_scales,
    describe,
    fewest_kept,
    keep_scales,
    largest_numbers,
    measure_effect,
    measure_losses,
    narrow_gemms,
    outputs_of,
)
from .quantization.layers import Layer, Layers, choose_layers, folds_norm, reads_stream, sizes

QUANTIZATION = "quantization"
"""The name of the metadata's entry."""
OPSET = 19
"""The first opset with e4m3. QuantizeLinear to int8 is the same in it."""

logger = logging.getLogger(__name__)


def _unseen(_: int) -> Step:
    """Shows no progress."""
    return lambda: None


def quantize(
    model: Model | GraphModel,
    batches: Sequence[Feeds],
    options: QuantizationOptions = AS_MEASURED,
    *,
    begin: BeginSteps = _unseen,
    verify: bool = True,
) -> Model:
    """A copy of a rewritten model whose GEMMs of packed tokens are in e4m3 or int8.

    Args:
        model: in fp16 or bf16, as `with_linear` returns it, without function bodies; or its graph, which is changed.
        batches: inputs of the model, with data of the kind that it will get; losses are measured on the first.
        options: type of 8 bits, margin and layers.
        begin: shows the progress; the steps are calibration batches.
        verify: whether the outputs are compared with the given model's, on the first batch.

    Raises:
        RewriteError: the model is not of that kind, or the data cannot be used.
        VerificationError: the outputs are too far off.
    """
    return _quantize(_measure(_graph_of(model), batches, options, begin), batches, options, verify=verify)


def quantize_gemms(
    model: Model | GraphModel,
    batches: Sequence[Feeds],
    options: QuantizationOptions = AS_MEASURED,
    *,
    stored_gemms: Sequence[StoredGemm] = (),
    fold_norms: bool = True,
    begin: BeginSteps = _unseen,
    verify: bool = True,
) -> Model:
    """Does the same for a model whose GEMMs are not PadfreeLinear yet, and chooses which operators compute its norms.

    With `fold_norms` the GEMMs do, from rows of 8 bits. Where norms stand ahead of layers, these are rows of a stream,
    to which every layer adds. If a GEMM loses more than LARGEST_STREAM_LOSS by that, such norms stay operators of their
    own, their results are rounded instead, and the model is calibrated again. In int8 all norms do so if a GEMM that
    folds one loses more than LARGEST_NORM_LOSS.

    With `stored_gemms`, those of the file that the model was made of, GEMMs have the scales and weights of the file,
    and no others are in 8 bits. Norms stay operators then, as the file rounds their results; batches may be missing,
    and only measure losses.
    """
    rewritten = _graph_of(model)
    folded = rewritten.copy()
    add_linear(folded, fold_norms=fold_norms and not stored_gemms)
    measurements = _measure(folded, batches, options, begin, stored_gemms)
    if measurements.selection.stream_loss > LARGEST_STREAM_LOSS:
        add_linear(rewritten, fold_streams=False)
        measurements = _measure(rewritten, batches, options, begin)
    elif options.number_format.smooths and measurements.selection.norm_loss > LARGEST_NORM_LOSS:
        add_linear(rewritten, fold_norms=False)
        measurements = _measure(rewritten, batches, options, begin)
    return _quantize(measurements, batches, options, verify=verify)


@dataclass(frozen=True)
class _Measurements:
    """A model in half precision, the same as onnxruntime ran it, and the GEMMs selected for 8 bits."""

    rewritten: GraphModel
    plain: Model
    weights: QuantizedWeights
    selection: Selection


def _measure(
    rewritten: GraphModel,
    batches: Sequence[Feeds],
    options: QuantizationOptions,
    begin: BeginSteps,
    stored_gemms: Sequence[StoredGemm] = (),
) -> _Measurements:
    _check(rewritten.metadata, batches, stored_gemms)
    plain, weights = rewritten.export(), QuantizedWeights(options.number_format)
    check_nodes(plain.proto)
    done = begin(len(batches)) if batches else _unseen(0)
    selection = _select(rewritten, plain, batches, options, weights, stored_gemms, done)
    return _Measurements(rewritten, plain, weights, selection)


def _quantize(
    measurements: _Measurements, batches: Sequence[Feeds], options: QuantizationOptions, *, verify: bool
) -> Model:
    rewritten, plain, selection = measurements.rewritten, measurements.plain, measurements.selection
    metadata, losses = rewritten.metadata, selection.losses
    if not selection.layers.chosen_layers:
        name = max(losses, key=lambda name: losses[name].whole)
        raise RewriteError(
            f"every GEMM loses too much in {options.number_format.precision}, '{name}' most: "
            f"{selection.layers.kept_layers[name]}; choose precision fp16, or allow more with --largest-loss"
        )
    effects = dict[str, Effect]()
    if options.least_cosine is not None:
        selection, effects = _keep_gemms(measurements, batches[:1], options, options.least_cosine)
    gemm_sizes = sizes(rewritten.graph)
    exported = _narrow(rewritten, selection, measurements.weights, options.number_format)
    if verify and not effects:
        before, after = (outputs_of(model, metadata["precision"], metadata, batches[:1]) for model in (plain, exported))
        effects = measure_effect(before, after, metadata, batches[:1])
    metadata[QUANTIZATION] = describe(selection, metadata, options, batches, effects, gemm_sizes)
    write_metadata(exported.proto, metadata)
    check_effects(effects, losses, options.number_format)
    return exported


def _keep_gemms(
    measurements: _Measurements, batches: Sequence[Feeds], options: QuantizationOptions, least: float
) -> tuple[Selection, dict[str, Effect]]:
    """The selection with the fewest GEMMs in half precision, of those that lose most per token, that keeps a cosine."""
    if not batches:
        raise RewriteError("there are no calibration data to measure a cosine on; pass them, or no least cosine")
    selection, metadata = measurements.selection, measurements.rewritten.metadata
    names = sorted(
        (layer.name for layer in selection.layers.chosen_layers), key=lambda name: -selection.losses[name].per_token
    )
    before = outputs_of(measurements.plain, metadata["precision"], metadata, batches)
    effects = dict[int, dict[str, Effect]]()

    def cosine_of(count: int) -> float:
        trial = measurements.rewritten.copy()
        layers = [item for item in choose_layers(trial.graph, options).chosen_layers if item.name in names[count:]]
        trial_selection = replace(selection, layers=Layers(tuple(layers), {}))
        exported = _narrow(trial, trial_selection, measurements.weights, options.number_format)
        after = outputs_of(exported, metadata["precision"], metadata, batches)
        effects[count] = measure_effect(before, after, metadata, batches)
        result = min((effect.mean_cosine for effect in effects[count].values()), default=1.0)
        logger.info("%d of %d GEMMs in half precision: cosine %.5f", count, len(names), result)
        return result

    count = fewest_kept(len(names), cosine_of, least)
    if count is None:
        raise RewriteError(
            f"with a single GEMM in {options.number_format.precision} the cosine is below {least:g} on the calibration "
            "data; choose precision fp16, or allow less with --least-cosine"
        )
    reasons = {
        name: f"loses {selection.losses[name].per_token:.3f} per token; kept for a cosine of {least:g}"
        for name in names[:count]
    }
    chosen_layers = tuple(layer for layer in selection.layers.chosen_layers if layer.name not in reasons)
    layers = Layers(chosen_layers, {**selection.layers.kept_layers, **reasons})
    return replace(selection, layers=layers), effects[count]


def _narrow(rewritten: GraphModel, selection: Selection, weights: QuantizedWeights, number_format: Format) -> Model:
    """Puts the selected GEMMs in 8 bits into a graph, in place, and exports it."""
    graph, metadata = rewritten.graph, rewritten.metadata
    precision = metadata["precision"]
    result = narrow_gemms(
        graph, precision, selection.layers.chosen_layers, selection.scales, weights, number_format, selection.shifts
    )
    tidy(graph)
    check_graph(graph, result.name)
    metadata["coverage"]["passes"].append(result.to_dict())
    rewritten.describe_nodes()
    exported = rewritten.export()
    check_nodes(exported.proto)
    check_element_types(exported.proto, precision)
    return exported


def _check(metadata: Mapping[str, Any], batches: Sequence[Feeds], stored_gemms: Sequence[StoredGemm]) -> None:
    """Raises RewriteError where a model with this metadata, or the data, cannot be used."""
    if not metadata:
        raise RewriteError("the model carries no padfree metadata; rewrite it first (padfree optimize)")
    if QUANTIZATION in metadata:
        raise RewriteError("the model is quantised already; give the original, or leave out --calibrate")
    if metadata["precision"] == "fp32":
        raise RewriteError(
            "the model was rewritten in fp32, and 8 bits stand beside fp16 or bf16; rewrite it with precision fp16"
        )
    if not batches and not stored_gemms:
        raise RewriteError("there is no calibration data; pass texts, or token ids, of the kind that the model gets")


def _graph_of(model: Model | GraphModel) -> GraphModel:
    """The model's graph, in an opset that has numbers of 8 bits."""
    rewritten = model if isinstance(model, GraphModel) else GraphModel.of(model)
    raise_opset_of_graph(rewritten.graph, OPSET)
    return rewritten


def _select(
    rewritten: GraphModel,
    model: Model,
    batches: Sequence[Feeds],
    options: QuantizationOptions,
    weights: QuantizedWeights,
    stored_gemms: Sequence[StoredGemm],
    done: Step,
) -> Selection:
    """Chooses GEMMs and scales; GEMMs that lose too much, or read only zeros, stay in half precision."""
    layers, precision = choose_layers(rewritten.graph, options), rewritten.metadata["precision"]
    scales: Mapping[str, TensorScale] = {}
    if stored_gemms:
        layers, scales = keep_scales(layers, stored_gemms, weights)
        if not batches:
            return Selection(layers, {}, scales, {}, keeps_scales=True)
    tensors = list(dict.fromkeys(layer.x for layer in layers.chosen_layers))
    number_format = replace(options.number_format, corrects_bias=False) if stored_gemms else options.number_format
    columns = largest_numbers(model, precision, tensors, batches, done, by_column=number_format.smooths)
    if not stored_gemms:
        scales = choose_scales(model, precision, layers.chosen_layers, columns, options, batches[0])
    losses = measure_losses(model, precision, layers.chosen_layers, scales, weights, batches[0], number_format)
    largest = {name: float(values.max()) for name, values in columns.items()}
    reasons, chosen_layers = dict(layers.kept_layers), list[Layer]()
    for layer in layers.chosen_layers:
        if largest[layer.x] == 0:
            reasons[layer.name] = f"what it multiplies, '{layer.x}', is zero in all calibration data"
        elif (loss := losses[layer.name].whole) > options.largest_loss:
            reasons[layer.name] = f"loses {loss:.3f} of its result, allowed is {options.largest_loss:g}"
        else:
            chosen_layers.append(layer)
    of_streams, of_norms = (
        max((losses[layer.name].whole for layer in layers.chosen_layers if reads(layer)), default=0.0)
        for reads in (reads_stream, folds_norm)
    )
    return Selection(
        Layers(tuple(chosen_layers), reasons), largest, scales, losses, of_streams, of_norms, bool(stored_gemms)
    )
