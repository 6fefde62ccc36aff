# SPDX-License-Identifier: Apache-2.0
"""Whose matrix products an engine uses for packed tokens, TensorRT's or padfree's, and who computes its layer norms."""

from __future__ import annotations

import logging

import onnx
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.operators import OPERATORS, node_attributes, padfree_nodes
from padfree.runtime.device import Device

from .errors import BuildError

AUTO, PADFREE, TENSORRT = CHOICES = ("auto", "padfree", "tensorrt")
FOLDED, SEPARATE = NORMS = ("folded", "separate")
MOST_TOKENS_TO_FOLD = 512
"""Of an engine's optimum, up to which folded norms are faster. An H200 takes 11 % less for a layer of BERT-base at 128
tokens, and 3 % more at 1229 (docs/linear.md)."""
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


def choose_norms(wanted: str, model: onnx.ModelProto, opt_tokens: int) -> str:
    """What becomes of layer norms between products, one of NORMS; `wanted` is one of them, or "auto".

    Auto folds them where that is faster, and leaves a model as it is that has them folded.

    Raises:
        BuildError: `wanted` is something else.
    """
    if wanted not in (AUTO, *NORMS):
        raise BuildError(f"norms is '{wanted}', allowed are {', '.join((AUTO, *NORMS))}; choose one of them")
    if wanted != AUTO:
        return wanted
    return FOLDED if opt_tokens <= MOST_TOKENS_TO_FOLD else norms_of(model)


def apply_linear(choice: str, model: onnx.ModelProto, *, norms: str) -> onnx.ModelProto:
    """The model with the products of `choice`; a model that has PadfreeLinear is left as it is.

    Args:
        choice: "padfree" or "tensorrt".
        model: rewritten.
        norms: one of NORMS: whether PadfreeLinear computes the layer norms between products, where it can.

    Raises:
        BuildError: `norms` is not what the model has.
    """
    if norms == SEPARATE and norms_of(model) == FOLDED:
        raise BuildError(
            f"the model was rewritten with norms folded and --norms {SEPARATE} was asked for; rewrite the original "
            f"with --norms {SEPARATE}"
        )
    if choice != PADFREE or any(node.op_type == OPERATOR for node in padfree_nodes(model.graph)):
        return model
    _log.info("packed tokens are multiplied by %s", OPERATOR)
    return with_linear(model, fold_norms=norms == FOLDED)


def norms_of(model: onnx.ModelProto) -> str:
    """Whether norms are folded into a rewritten model's products: one of NORMS."""
    products = (node for node in padfree_nodes(model.graph) if node.op_type == OPERATOR)
    return FOLDED if any(node_attributes(node)["has_moments"] for node in products) else SEPARATE


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
