# SPDX-License-Identifier: Apache-2.0
"""Whose matrix products an engine uses for packed tokens: TensorRT's or padfree's."""

from __future__ import annotations

import logging

import onnx
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.operators import OPERATORS, padfree_nodes
from padfree.runtime.device import Device

from .errors import BuildError

AUTO, PADFREE, TENSORRT = CHOICES = ("auto", "padfree", "tensorrt")
OPERATOR = "PadfreeLinear"
COMPUTE_CAPABILITY = "9.0"
"""Of the one architecture that PadfreeLinear has a kernel for: Hopper."""

_log = logging.getLogger(__name__)


def choose_linear(wanted: str, model: onnx.ModelProto, precision: str, device: Device) -> str:
    """Whose products the engine uses, "padfree" or "tensorrt"; `wanted` is one of CHOICES.

    Auto is padfree where its kernel fits the GPU and the precision.

    Raises:
        BuildError: what is wanted is not to be had here, or the model says something else.
    """
    if wanted not in CHOICES:
        raise BuildError(f"linear is '{wanted}', allowed are {', '.join(CHOICES)}; choose one of them")
    problem = _problem(precision, device)
    if any(node.op_type == OPERATOR for node in padfree_nodes(model.graph)):
        if wanted == TENSORRT or problem:
            raise BuildError(
                f"the model was rewritten with {OPERATOR} and "
                f"{problem or f'--linear {TENSORRT} was asked for'}; rewrite the original without --linear {PADFREE}"
            )
        return PADFREE
    if wanted == PADFREE and problem:
        raise BuildError(f"--linear {PADFREE}: {problem}; pass --linear {TENSORRT}, or leave the option out")
    return TENSORRT if wanted == TENSORRT or problem else PADFREE


def apply_linear(choice: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the products of `choice`; a model that has PadfreeLinear is left as it is."""
    if choice != PADFREE or any(node.op_type == OPERATOR for node in padfree_nodes(model.graph)):
        return model
    _log.info("packed tokens are multiplied by %s", OPERATOR)
    return with_linear(model)


def _problem(precision: str, device: Device) -> str:
    """Why PadfreeLinear cannot run here, empty where it can."""
    precisions = OPERATORS[OPERATOR].plugin_precisions
    if precision not in precisions:
        return f"{OPERATOR} computes in {' or '.join(precisions)}, the model is {precision}"
    if device.compute_capability != COMPUTE_CAPABILITY:
        return (
            f"{OPERATOR} needs compute capability {COMPUTE_CAPABILITY}, {device.name} has {device.compute_capability}"
        )
    return ""
