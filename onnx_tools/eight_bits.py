# SPDX-License-Identifier: Apache-2.0
"""Quantises a rewritten model to e4m3 or int8: calibration, losses, the new graph, and what the whole model loses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .analysis.check import check_graph
from .analysis.graph import tidy
from .errors import RewriteError, VerificationError
from .files.metadata import write_metadata
from .files.model import Model
from .graph_model import GraphModel
from .importing.newer_opsets import raise_opset_of_graph
from .importing.quantized import StoredGemm
from .linear import add_linear
from .operators import check_nodes
from .precision.element_types import check_element_types
from .quantization.calibration import BeginSteps, Feeds, Step, largest_numbers
from .quantization.effect import Effect, measure_effect
from .quantization.formats import Format
from .quantization.kept_scales import keep_scales
from .quantization.layers import Layer, Layers, choose_layers, reads_stream
from .quantization.losses import measure_losses
from .quantization.narrowing import narrow_gemms
from .quantization.options import AS_MEASURED, LARGEST_STREAM_LOSS, QuantizationOptions
from .quantization.scales import TensorScale
from .quantization.smoothing import choose_scales
from .quantization.weights import QuantizedWeights

QUANTIZATION = "quantization"
"""The name of the metadata's entry."""
OPSET = 19
"""The first opset with e4m3. QuantizeLinear to int8 is the same in it."""
LEAST_COSINE = 0.9
"""Cosine of an output, averaged over sequences, below which something is wrong."""
_WORST_SHOWN = 3

logger = logging.getLogger(__name__)


def _unseen(_: int) -> Step:
    """Shows no progress."""
    return lambda: None


@dataclass(frozen=True)
class _Plan:
    """Which GEMMs go to 8 bits, their tensors' scales, and what was measured.

    stream_loss: the largest loss of a GEMM that reads a stream, whether it goes to 8 bits or not.
    """

    layers: Layers
    largest: Mapping[str, float]
    scales: Mapping[str, TensorScale]
    losses: Mapping[str, float]
    stream_loss: float


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
    own, their results are rounded instead, and the model is calibrated again.

    With `stored_gemms`, those of the file that the model was made of, GEMMs have the scales and weights of the file,
    and no others are in 8 bits. Norms stay operators then, as the file rounds their results; batches may be missing,
    and only measure losses.
    """
    rewritten = _graph_of(model)
    folded = rewritten.copy()
    add_linear(folded, fold_norms=fold_norms and not stored_gemms)
    measurements = _measure(folded, batches, options, begin, stored_gemms)
    if measurements.plan.stream_loss > LARGEST_STREAM_LOSS:
        add_linear(rewritten, fold_streams=False)
        measurements = _measure(rewritten, batches, options, begin)
    return _quantize(measurements, batches, options, verify=verify)


@dataclass(frozen=True)
class _Measurements:
    """A model in half precision, the same as onnxruntime ran it, and the plan for quantising it."""

    rewritten: GraphModel
    plain: Model
    weights: QuantizedWeights
    plan: _Plan
    kept_scales: bool


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
    plan = _plan(rewritten, plain, batches, options, weights, stored_gemms, done)
    return _Measurements(rewritten, plain, weights, plan, bool(stored_gemms))


def _quantize(
    measurements: _Measurements, batches: Sequence[Feeds], options: QuantizationOptions, *, verify: bool
) -> Model:
    rewritten, plain, plan = measurements.rewritten, measurements.plain, measurements.plan
    graph, metadata = rewritten.graph, rewritten.metadata
    precision, losses = metadata["precision"], plan.losses
    if not plan.layers.chosen_layers:
        name = max(losses, key=losses.__getitem__)
        raise RewriteError(
            f"every GEMM loses too much in {options.number_format.precision}, '{name}' most: "
            f"{plan.layers.kept_layers[name]}; choose precision fp16, "
            "or allow more with --largest-loss"
        )
    chosen_layers, weights = plan.layers.chosen_layers, measurements.weights
    result = narrow_gemms(graph, precision, chosen_layers, plan.scales, weights, options.number_format)
    tidy(graph)
    check_graph(graph, result.name)
    metadata["coverage"]["passes"].append({"name": result.name, "replaced": result.replaced, "missed": []})
    rewritten.describe_nodes()
    exported = rewritten.export()
    check_nodes(exported.proto)
    check_element_types(exported.proto, precision)
    effects = measure_effect(plain, exported, precision, metadata, batches[:1]) if verify else {}
    metadata[QUANTIZATION] = _describe(measurements, options, batches, effects)
    write_metadata(exported.proto, metadata)
    _check_effects(effects, losses, options.number_format)
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


def _plan(
    rewritten: GraphModel,
    model: Model,
    batches: Sequence[Feeds],
    options: QuantizationOptions,
    weights: QuantizedWeights,
    stored_gemms: Sequence[StoredGemm],
    done: Step,
) -> _Plan:
    """Chooses GEMMs and scales; GEMMs that lose too much, or read only zeros, stay in half precision."""
    layers, precision = choose_layers(rewritten.graph, options), rewritten.metadata["precision"]
    scales: Mapping[str, TensorScale] = {}
    if stored_gemms:
        layers, scales = keep_scales(layers, stored_gemms, weights)
        if not batches:
            return _Plan(layers, {}, scales, {}, 0.0)
    tensors = list(dict.fromkeys(layer.x for layer in layers.chosen_layers))
    number_format = options.number_format
    columns = largest_numbers(model, precision, tensors, batches, done, by_column=number_format.smooths)
    if not stored_gemms:
        scales = choose_scales(model, precision, layers.chosen_layers, columns, options, batches[0])
    losses = measure_losses(model, precision, layers.chosen_layers, scales, weights, batches[0], number_format)
    largest = {name: float(values.max()) for name, values in columns.items()}
    reasons, chosen_layers = dict(layers.kept_layers), list[Layer]()
    for layer in layers.chosen_layers:
        if largest[layer.x] == 0:
            reasons[layer.name] = f"what it multiplies, '{layer.x}', is zero in all calibration data"
        elif losses[layer.name] > options.largest_loss:
            reasons[layer.name] = f"loses {losses[layer.name]:.3f} of its result, allowed is {options.largest_loss:g}"
        else:
            chosen_layers.append(layer)
    stream_loss = max((losses[layer.name] for layer in layers.chosen_layers if reads_stream(layer)), default=0.0)
    return _Plan(Layers(tuple(chosen_layers), reasons), largest, scales, losses, stream_loss)


def _describe(
    measurements: _Measurements, options: QuantizationOptions, batches: Sequence[Feeds], effects: Mapping[str, Effect]
) -> dict[str, Any]:
    """The entry `quantization` of the metadata."""
    plan, metadata = measurements.plan, measurements.rewritten.metadata
    tokens = next(item["name"] for item in metadata["inputs"] if item["role"] == "tokens")
    room = {"kept_scales": True} if measurements.kept_scales else {"margin": options.room}
    return {
        "type": options.number_format.name,
        **room,
        "largest_loss": options.largest_loss,
        "calibration": {"batches": len(batches), "tokens": sum(int(feeds[tokens].size) for feeds in batches)},
        "layers": [_layer_json(layer, plan) for layer in plan.layers.chosen_layers],
        "kept": dict(plan.layers.kept_layers),
        "outputs": {name: effect.to_dict() for name, effect in effects.items()},
    }


def _layer_json(layer: Layer, plan: _Plan) -> dict[str, Any]:
    """A layer's entry, without what was not measured."""
    scale, losses = plan.scales[layer.x], plan.losses
    result: dict[str, Any] = {"name": layer.name, "x": layer.x, "scale": scale.value}
    if losses:
        result |= {"largest": plan.largest[layer.x], "loss": losses[layer.name]}
    return result if scale.strength is None else result | {"smoothing": scale.strength}


def _check_effects(effects: Mapping[str, Effect], losses: Mapping[str, float], number_format: Format) -> None:
    """Warns of an output that is far off, and raises VerificationError for one that is too far off."""
    for name, effect in effects.items():
        if effect.mean_cosine >= number_format.usual_cosine:
            continue
        worst = sorted(losses, key=losses.__getitem__, reverse=True)[:_WORST_SHOWN]
        losses_text = ", ".join(f"'{layer}' ({losses[layer]:.3f})" for layer in worst)
        problem = (
            f"in {number_format.precision} the cosine of output '{name}' to that of the model in half precision is "
            f"{effect.mean_cosine:.4f} on average over {effect.sequences} sequences of the calibration data, trained "
            f"models keep 0.997; the GEMMs that lose most are {losses_text}: keep them with --keep, or choose "
            "precision fp16"
        )
        if not effect.mean_cosine >= LEAST_COSINE:
            raise VerificationError(f"{problem}; allowed is {LEAST_COSINE}")
        logger.warning("%s", problem)
