# SPDX-License-Identifier: Apache-2.0
"""Files that hold nodes of NVIDIA's BERT plugins, and what to do with them."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto

from ..errors import RewriteError

PLUGINS = frozenset(
    {
        "CustomEmbLayerNormPluginDynamic",
        "CustomFCPluginDynamic",
        "CustomGeluPluginDynamic",
        "CustomQKVToContextPluginDynamic",
        "CustomSkipLayerNormPluginDynamic",
    }
)
"""Operators that are plugins of TensorRT's demo BERT, in whatever domain a file has them."""
_INT8 = 2  # as the plugins' field type_id has it
_SCALE = "dq_probs"  # the field of attention in int8: scales of the probabilities


def refuse_plugins(model: ModelProto) -> None:
    """Raises RewriteError for a model that holds such a node: its name, what the file is, and what to give instead."""
    found = [node for node in model.graph.node if node.op_type in PLUGINS]
    if not found:
        return
    node = next((item for item in found if _is_int8(item)), found[0])
    what = "computes in int8, with scales that no float model holds" if _is_int8(node) else "is one of NVIDIA's plugins"
    raise RewriteError(
        f"node '{node.name or node.output[0]}' ({node.op_type}) {what}: the file is arranged for TensorRT's demo BERT, "
        "with Q, K and V interleaved by heads, and is no standard ONNX; rewrite the float model that it was made from "
        "(the .onnx file before the plugins, or the Hugging Face folder) with --interface varseqlen, whose inputs are "
        "the same (docs/migrating.md)"
    )


def _is_int8(node: NodeProto) -> bool:
    for attribute in node.attribute:
        if attribute.name == "type_id" and attribute.i == _INT8:
            return True
        if attribute.name == _SCALE or (attribute.HasField("t") and attribute.t.data_type == TensorProto.INT8):
            return True
    return False
