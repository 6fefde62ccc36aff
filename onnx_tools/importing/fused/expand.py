# SPDX-License-Identifier: Apache-2.0
"""The fused operators that are imported, and the errors for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import onnx_graphsurgeon as gs
from onnx import ModelProto, NodeProto, helper

from ...analysis import STANDARD_DOMAINS, Editor, node_name
from ...analysis.symbolic import Facts
from ...errors import RewriteError
from . import activations, attention, blocks, gemms, grouped_query, norms, rotary
from .expansion import Expansion, NotImportable

DOMAIN = "com.microsoft"
_FIRST_LAYER_NORM = 17  # opset; in older ones, LayerNormalization is onnxruntime's

IMPORTERS: Mapping[str, Callable[[Expansion], gs.Tensor | Sequence[gs.Tensor | None]]] = MappingProxyType(
    {
        "Attention": attention.attention,
        "BiasAdd": activations.bias_add,
        "BiasGelu": activations.gelu,
        "EmbedLayerNormalization": norms.embedding,
        "FastGelu": activations.fast_gelu,
        "FusedGemm": gemms.fused_gemm,
        "FusedMatMul": gemms.fused_matmul,
        "GatherBlockQuantized": blocks.gather_blocks,
        "Gelu": activations.gelu,
        "GroupQueryAttention": grouped_query.group_query_attention,
        "LayerNormalization": norms.norm,
        "MatMulNBits": blocks.matmul_nbits,
        "MultiHeadAttention": attention.multi_head_attention,
        "QuickGelu": activations.quick_gelu,
        "RotaryEmbedding": rotary.rotary_embedding,
        "SimplifiedLayerNormalization": norms.norm,
        "SkipLayerNormalization": norms.skip_norm,
        "SkipSimplifiedLayerNormalization": norms.skip_norm,
    }
)

_EXPORT = "rewrite a file exported without graph optimisation (optimum-cli export onnx without --optimize)"
_FLOAT = "rewrite the float model that was quantised"
# By parts of operators' names, what such operators do, and what to do instead. The first part that fits counts.
_REASONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "Padding": ("it packs tokens in onnxruntime's own way", _EXPORT),
        "Packed": ("it packs tokens in onnxruntime's own way", _EXPORT),
        "NBits": ("its weights are quantised", _FLOAT),
        "Bnb4": ("its weights are quantised", _FLOAT),
        "Quantize": ("it is quantised", _FLOAT),
        "Integer": ("it is quantised", _FLOAT),
        "QLinear": ("it is quantised", _FLOAT),
        "QAttention": ("it is quantised", _FLOAT),
        "QEmbed": ("it is quantised", _FLOAT),
        "QOrdered": ("it is quantised", _FLOAT),
        "QGemm": ("it is quantised", _FLOAT),
        "Decoder": ("it is a decoder's attention", "padfree rewrites encoders"),
    }
)


def is_fused(node: gs.Node | NodeProto, version: int) -> bool:
    """Whether a node is one of onnxruntime's own operators, in a file of this opset. Some are in ONNX's domain.

    So is RotaryEmbedding, the standard's since opset 23: it is taken apart like onnxruntime's.
    """
    op = node.op_type if isinstance(node, NodeProto) else node.op
    if node.domain in STANDARD_DOMAINS:
        return op in ("RotaryEmbedding", "SimplifiedLayerNormalization") or (
            op == "LayerNormalization" and version < _FIRST_LAYER_NORM
        )
    return node.domain == DOMAIN or str(node.domain).startswith(f"{DOMAIN}.")


def holds_fused(model: ModelProto) -> bool:
    """Whether any node of a model is one of onnxruntime's own operators."""
    version = _version(model)
    return any(is_fused(node, version) for node in model.graph.node)


def declare_fused(model: ModelProto) -> None:
    """Gives fused operators in ONNX's domain onnxruntime's, so that the checker of ONNX takes them."""
    version = _version(model)
    for node in model.graph.node:
        if is_fused(node, version):
            node.domain = node.domain or DOMAIN
    if not any(item.domain == DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _version(model: ModelProto) -> int:
    return next((item.version for item in model.opset_import if item.domain in STANDARD_DOMAINS), 1)


def expand_fused(editor: Editor, facts: dict[str, Facts], node: gs.Node) -> None:
    """Adds the standard operators that a fused node stands for, and disconnects the node.

    `facts` are those about the tensors before the node; facts about the new ones are added. Raises RewriteError for an
    operator that cannot be imported, with the reason and what to do instead.
    """
    importer = IMPORTERS.get(node.op)
    if importer is None or (node.domain or "").startswith(f"{DOMAIN}."):
        raise _refusal(node)
    expansion = Expansion(editor, facts, node)
    try:
        expansion.finish(importer(expansion))
    except NotImportable as reason:
        raise _error(node, str(reason), _EXPORT) from None


def _refusal(node: gs.Node) -> RewriteError:
    if node.domain != DOMAIN:
        fix = "save the optimised model with ORT_ENABLE_EXTENDED, or rewrite the original export"
        return _error(node, "its tensors are arranged for one machine", fix)
    for part, (reason, fix) in _REASONS.items():
        if part in node.op:
            return _error(node, reason, fix)
    return _error(node, f"known are {', '.join(IMPORTERS)}", _EXPORT)


def _error(node: gs.Node, reason: str, fix: str) -> RewriteError:
    operator = f"{node.domain}.{node.op}" if node.domain else node.op
    return RewriteError(f"node '{node_name(node)}' ({operator}) cannot be imported: {reason}; {fix}")
