# SPDX-License-Identifier: Apache-2.0
"""Steps that change nothing, but refuse what no packed graph can compute."""

from __future__ import annotations

import onnx_graphsurgeon as gs
from onnx import ModelProto
from padfree.contract.fields import MOST_NAME_LETTERS, is_name

from ..analysis import drops_nothing, is_standard, node_name
from ..errors import RewriteError
from ..operators import DOMAIN
from .quantized.rounding_nodes import only_tensorrt_rounds
from .typed_graph import TypedGraph

_SHOWN_LETTERS = 60
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def check_not_rewritten(model: ModelProto, name: str) -> None:
    """Raises RewriteError for a model with operators of the domain padfree, which the message calls by this name."""
    if any(node.domain == DOMAIN for node in model.graph.node):
        raise RewriteError(
            f"{name} holds operators of the domain '{DOMAIN}' already: it has been rewritten; run it or build an "
            "engine of it, or rewrite the model that it was made from"
        )


def refuse_foreign(model: ModelProto) -> ModelProto:
    """The model itself. Raises RewriteError if it is rewritten already, or has TensorRT's own nodes."""
    check_not_rewritten(model, "the model")
    foreign = next((node for node in model.graph.node if only_tensorrt_rounds(node)), None)
    if foreign is not None:
        raise RewriteError(
            f"node '{foreign.name}' (trt::{foreign.op_type}) is TensorRT's own low-precision operator; of these, "
            "TRT_FP8QuantizeLinear and TRT_FP8DequantizeLinear are known, one after the other; rewrite the float "
            "model that was quantised"
        )
    return model


def refuse_names(model: ModelProto) -> ModelProto:
    """The model itself. Raises RewriteError for names of inputs and outputs that no engine could have."""
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            if not is_name(value.name):
                raise RewriteError(
                    f"the model has an {kind} named {value.name[:_SHOWN_LETTERS]!r}; names of inputs and outputs must "
                    f"be 1 to {MOST_NAME_LETTERS} printable characters; export the model with other names"
                )
    return model


def refuse_what_batches_share(draft: TypedGraph) -> TypedGraph:
    """The graph itself. Raises RewriteError for scales that are computed from a whole batch, and for random numbers."""
    for node in draft.graph.nodes:
        if is_standard(node, "DynamicQuantizeLinear") and not isinstance(node.inputs[0], gs.Constant):
            raise RewriteError(
                f"node '{node_name(node)}' (DynamicQuantizeLinear) takes its scale from the largest and smallest "
                "number of a whole batch, padding included: every sequence's result depends on the others and on "
                "the padding, so that no packed graph can give the same; rewrite the float model it was made from, or "
                "one with constant scales (QuantizeLinear and DequantizeLinear)"
            )
        if is_standard(node, *_RANDOM) or (is_standard(node, "Dropout") and not drops_nothing(node)):
            raise RewriteError(
                f"node '{node_name(node)}' ({node.op}) draws random numbers: no two runs give the same, so that "
                "nothing can be compared; export the model for inference (model.eval())"
            )
    return draft
