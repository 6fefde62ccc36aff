# SPDX-License-Identifier: Apache-2.0
"""Encoders wide enough for GEMMs to absorb the operators around them, and how many of these they absorb."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto
from padfree.onnx_tools import RewriteResult, rewrite
from padfree.onnx_tools.operators import node_attributes, padfree_nodes

from . import exports
from .exports import Input

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "folded"
NAMES = tuple(path.name.removesuffix(".onnx.gz") for path in sorted(FOLDER.glob("*.onnx.gz")))


def load(name: str) -> ModelProto:
    """A model, with weights drawn from a seed that depends on their names."""
    return exports.load(name, FOLDER)


def inputs_of(model: ModelProto) -> list[Input]:
    """The model's inputs and their kinds."""
    kinds: Mapping[str, str] = {"attention_mask": "mask", "token_type_ids": "types", "bbox": "boxes"}
    return [Input(item.name, kinds.get(item.name, "ids"), low=4) for item in model.graph.input]


@dataclass(frozen=True)
class Layers:
    """How many kernels of each kind a model's layers have, on packed tokens."""

    linears: int
    gated: int
    turning: int
    norming: int
    norms: int
    rotations: int
    post_norms: int = 0


def layers_of(model: ModelProto) -> Layers:
    """Counts the kernels of a model whose GEMMs are PadfreeLinear, without those of the embedding."""
    nodes = list(padfree_nodes(model.graph))
    linear = [node_attributes(node) for node in nodes if node.op_type == "PadfreeLinear"]
    return Layers(
        len(linear),
        sum(bool(item["gated"]) for item in linear),
        sum(bool(item["rotary_features"]) for item in linear),
        sum(bool(item["has_x_moments"] or item["has_residual_moments"]) for item in linear),
        sum(node.op_type == "PadfreeLayerNorm" for node in nodes),
        sum(node.op_type in ("PadfreeRotary", "PadfreeQkNormRotary") for node in nodes),
        sum(node.op_type == "PadfreePostNorm" for node in nodes),
    )


def rewrite_fixture(name: str, precision: str = "fp32", interface: str = "packed") -> RewriteResult:
    """Rewrites a file with plain GEMMs and norms."""
    return rewrite(load(name), precision=precision, interface=interface, verify=False)
