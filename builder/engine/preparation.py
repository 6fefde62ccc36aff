# SPDX-License-Identifier: Apache-2.0
"""Prepares a model for TensorRT, from rewriting to what its parser gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
from padfree.contract.phases import Phases
from padfree.contract.quantization import TYPES
from padfree.onnx_tools import QUANTIZATION, GraphModel, add_linear, rewrite_model
from padfree.onnx_tools.files import Model, is_rewritten, read_metadata
from padfree.onnx_tools.operators import check_nodes
from padfree.onnx_tools.precision import check_element_types
from padfree.onnx_tools.quantization import check_scales
from padfree.runtime import parse_metadata
from padfree.runtime.gpu import Device

from ..errors import BuildError
from .linear import FOLDED, adds_linear, choose_linear, norms_heads
from .lowering import lower
from .options import BuildOptions
from .profile import choose_profile

AskDevice = Callable[[], Device | None]
"""Finds the GPU of a build; called once, during rewriting or after it. Without a GPU, GEMMs stay as they are."""


@dataclass(frozen=True)
class Preparation:
    """A model as TensorRT's parser gets it, and the one whose answers its engine has to give.

    `exact` is the rewritten model before its types and GEMMs were chosen, or the rewritten file as it was given;
    None where nothing is verified.
    """

    model: Model
    exact: Model | None


def prepare(model: Model, options: BuildOptions, device: AskDevice, *, phases: Phases | None = None) -> Preparation:
    """The model as TensorRT's parser gets it: rewritten, unless it carries padfree's metadata, with these GEMMs.

    `phases` gets the seconds.

    Raises:
        BuildError: a rewritten model of another interface or precision than asked for, a profile that does not fit it,
            or GEMMs that are not available; RewriteError: the model.
    """
    rewritten, exact = _rewrite(model, options, phases)
    proto = rewritten.source.proto
    metadata = parse_metadata(rewritten.metadata, "the rewritten model")
    longest = choose_profile(metadata, options.profile).max_seq_len
    gpu, norms = device(), options.norms
    choice = None if gpu is None else choose_linear(options.linear, proto, metadata.precision, gpu)
    check_nodes(proto)
    check_scales(rewritten.graph)
    if gpu is not None and choice is not None and adds_linear(choice, proto, norms=norms):
        add_linear(rewritten, fold_norms=norms == FOLDED, norm_heads=norms_heads(gpu))
    lower(rewritten.graph, longest)
    result = rewritten.export()
    check_nodes(result.proto)
    check_element_types(result.proto, metadata.precision)
    return Preparation(result, exact)


def _rewrite(model: Model, options: BuildOptions, phases: Phases | None) -> tuple[GraphModel, Model | None]:
    """The model's graph as rewritten, and with `verify` the exact model of a Preparation."""
    if is_rewritten(model.proto):
        check_rewritten(model.proto, options)
        return GraphModel.of(model), model if options.verify else None
    rewriting = rewrite_model(model, options.rewriting, keep_exact=bool(options.verify), phases=phases)
    return rewriting.graph, rewriting.exact


def check_rewritten(model: onnx.ModelProto, options: BuildOptions) -> None:
    """Raises BuildError for a rewritten model that is not what the options ask for."""
    raw = metadata_of(model)
    own, mask = (raw.get("mask") or {}).get("input"), options.mask_input
    if mask is not None and "mask" in raw and own != mask:
        raise BuildError(
            f"the model was rewritten with {'no mask' if own is None else f'the mask {own}'}, '{mask}' was asked for; "
            f"leave --mask out, or build from the original model with --mask {mask}"
        )
    has = {**raw, "masks": raw.get("masks", "any")} | _eight_bits(raw)
    options_by_name = {"interface": options.interface, "precision": options.precision, "masks": options.mask_form}
    for what, option in options_by_name.items():
        if option is not None and has.get(what) != option:
            raise BuildError(
                f"the model was rewritten with {what} {has.get(what)}, {option} was asked for; leave --{what} out, or "
                f"build from the original model with --{what} {option}"
            )


def _eight_bits(raw: dict[str, Any]) -> dict[str, str]:
    """The precision that was asked for, where it is not that of the activations."""
    return {"precision": TYPES[raw[QUANTIZATION]["type"]]} if QUANTIZATION in raw else {}


def metadata_of(model: onnx.ModelProto) -> dict[str, Any]:
    """The metadata object in a rewritten model. Raises BuildError where it is not JSON."""
    return read_metadata(model, BuildError)
