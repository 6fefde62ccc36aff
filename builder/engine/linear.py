# SPDX-License-Identifier: Apache-2.0
"""Chooses whose GEMMs an engine uses for packed tokens, TensorRT's or padfree's, and what computes its layer norms."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

import onnx
from padfree.contract.names import FP8, INT8
from padfree.onnx_tools import with_linear
from padfree.onnx_tools.files import Model
from padfree.onnx_tools.operators import OPERATORS, node_attributes, padfree_nodes
from padfree.runtime import SessionError
from padfree.runtime.gpu import Device, device_code, plugin_library

from ..errors import BuildError

AUTO, PADFREE, TENSORRT = CHOICES = ("auto", "padfree", "tensorrt")
FOLDED, SEPARATE = NORMS = ("folded", "separate")
OPERATOR, FP8_OPERATOR, INT8_OPERATOR = LINEAR_OPERATORS = ("PadfreeLinear", "PadfreeLinearFp8", "PadfreeLinearInt8")
EIGHT_BIT_OPERATORS: Mapping[str, str] = MappingProxyType({FP8: FP8_OPERATOR, INT8: INT8_OPERATOR})
"""By precision."""
_CAPABILITIES: Mapping[str, tuple[int, int]] = MappingProxyType({FP8_OPERATOR: (8, 9), INT8_OPERATOR: (8, 0)})
"""The first compute capability with such GEMMs."""
TUNED_MAJOR = 9
"""Hopper, whose kernels are at least as fast as TensorRT's; those for other GPUs have never been timed there."""

_log = logging.getLogger(__name__)


def choose_linear(choice: str, model: onnx.ModelProto, precision: str, device: Device) -> str:
    """Whose GEMMs the engine uses, "padfree" or "tensorrt"; `choice` is one of CHOICES.

    Auto is padfree where its kernel fits the precision and is made for the GPU, which is Hopper.

    Raises:
        BuildError: the choice is not available here, or contradicts the model.
    """
    if choice not in CHOICES:
        raise BuildError(f"linear is '{choice}', allowed are {', '.join(CHOICES)}; choose one of them")
    problem = _problem(precision)
    if linear_of(model) == PADFREE:
        operators = {node.op_type for node in _linear_nodes(model)}
        for precision, operator in EIGHT_BIT_OPERATORS.items():
            reason = eight_bit_problem(operator, device) or (
                choice == TENSORRT and f"--linear {TENSORRT} was asked for"
            )
            if operator in operators and reason:
                raise BuildError(
                    f"the model is in {precision}, and {reason}; build from the original with --precision fp16"
                )
        if INT8_OPERATOR in operators and not eight_bit_problem(FP8_OPERATOR, device):
            _log.warning(
                "%s has e4m3, for which fp8 is the better choice: it is faster and loses less; build from the "
                "original with --precision %s",
                device.name,
                FP8,
            )
        if choice == TENSORRT or problem:
            raise BuildError(
                f"the model was rewritten with {OPERATOR} and "
                f"{problem or f'--linear {TENSORRT} was asked for'}; rewrite the original without --linear {PADFREE}"
            )
        return PADFREE
    if choice == PADFREE and problem:
        raise BuildError(f"--linear {PADFREE}: {problem}; pass --linear {TENSORRT}, or leave the option out")
    if choice == AUTO:
        return PADFREE if not problem and device.major == TUNED_MAJOR else TENSORRT
    return choice


def norms_heads(device: Device) -> bool:
    """Whether PadfreeLinear norms heads of Q and K: Hopper's own kernels do, which a library of PTX lacks."""
    if device.major != TUNED_MAJOR:
        return False
    try:
        compiled = device_code.architectures(plugin_library.find())
    except SessionError:
        return True  # the build says later that there is none
    return device_code.PTX not in (compiled or ())


def adds_linear(choice: str, model: onnx.ModelProto, *, norms: str) -> bool:
    """Whether a rewritten model has yet to get the GEMMs of `choice`, "padfree" or "tensorrt".

    `norms`, one of NORMS, says whether PadfreeLinear computes the layer norms between GEMMs, where it can.

    Raises:
        BuildError: `norms` is something else, or not what the model has.
    """
    if norms not in NORMS:
        raise BuildError(f"norms is '{norms}', allowed are {', '.join(NORMS)}; choose one of them")
    if norms == SEPARATE and norms_of(model) == FOLDED:
        raise BuildError(
            f"the model was rewritten with norms folded and --norms {SEPARATE} was asked for; rewrite the original "
            f"with --norms {SEPARATE}"
        )
    if choice != PADFREE or linear_of(model) == PADFREE:
        return False
    _log.info("packed tokens are multiplied by %s", OPERATOR)
    return True


def apply_linear(choice: str, model: Model, *, norms: str) -> Model:
    """The model with these GEMMs, or itself where it has yet to get none. Errors: see adds_linear."""
    return with_linear(model, fold_norms=norms == FOLDED) if adds_linear(choice, model.proto, norms=norms) else model


def linear_of(model: onnx.ModelProto) -> str:
    """Whose GEMMs a rewritten model has, "padfree" or "tensorrt"."""
    return PADFREE if _linear_nodes(model) else TENSORRT


def norms_of(model: onnx.ModelProto) -> str:
    """Whether norms are folded into a rewritten model's GEMMs: one of NORMS."""
    return FOLDED if any(node_attributes(node)["has_moments"] for node in _linear_nodes(model)) else SEPARATE


def _linear_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in padfree_nodes(model.graph) if node.op_type in LINEAR_OPERATORS]


def eight_bit_problem(operator: str, device: Device) -> str:
    """Why GEMMs in e4m3 or int8 cannot run on a GPU, empty where they can."""
    own = (device.major, device.minor)
    if own >= _CAPABILITIES[operator]:
        return ""
    capability = "{}.{}".format(*_CAPABILITIES[operator])
    problem = (
        f"{operator} needs compute capability {capability} or newer, {device.name} has {device.compute_capability}"
    )
    has_int8 = operator == FP8_OPERATOR and own >= _CAPABILITIES[INT8_OPERATOR]
    return f"{problem}, where --precision {INT8} is what takes 8 bits" if has_int8 else problem


def _problem(precision: str) -> str:
    """Why PadfreeLinear cannot compute in a precision, empty where it can."""
    precisions = OPERATORS[OPERATOR].plugin_precisions
    if precision in precisions:
        return ""
    return f"{OPERATOR} computes in {' or '.join(precisions)}, the model is {precision}"
