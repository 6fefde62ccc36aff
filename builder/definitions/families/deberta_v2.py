# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v2 and v3: buckets of distances, and a convolution beside the first layer (arXiv 2006.03654, 2111.09543)."""

from __future__ import annotations

import numpy as np

from ..blocks import LayerSizes, PostNormLayer
from ..distances import Distances, log_buckets
from ..encoder import sizes_of
from ..errors import NotDefinedError
from ..graph import MASK
from ..keys import Keys
from ..layers import Linear, Norm, activation_of, add
from ..model import Definition, EncoderRows, Writing, of_type
from ..tensors import Tensors
from .deberta import HEADS, Version, encode, furthest_of, layer_of, token_types


def _encode(writing: Writing) -> EncoderRows:
    keys = writing.keys
    sizes = sizes_of(keys, width=1536, heads=24, inner=6144, epsilon=1e-7)
    keys.only(attention_head_size=sizes.heads.size, conv_groups=1)
    return encode(writing, sizes, _V2)


def _distances(writing: Writing, tensors: Tensors, sizes: LayerSizes, terms: tuple[str, ...]) -> Distances:
    keys, graph = writing.keys, writing.graph
    furthest = furthest_of(keys)
    keys.ignore("position_buckets")
    buckets = keys.raw.get("position_buckets", -1)
    has_buckets = isinstance(buckets, int) and buckets > 0
    span = keys.size("position_buckets") if has_buckets else furthest
    if (span < 4 and has_buckets) or furthest <= max(span // 2 + 1, 1):
        raise NotDefinedError(f"{span} buckets for distances up to {furthest} are none of DeBERTa's")
    with graph.scope("distances"):
        table = graph.weight(tensors.take("encoder.rel_embeddings.weight", 2 * span, sizes.width))
        norms = [item.strip() for item in keys.text("norm_rel_ebd", default="none").lower().split("|")]
        if not {"none", "layer_norm"}.issuperset(norms):
            raise NotDefinedError(
                f"'norm_rel_ebd' is {'|'.join(norms)[:60]!r}, and none and layer_norm alone are known"
            )
        if "layer_norm" in norms:
            table = Norm.of(tensors, "encoder.LayerNorm", sizes.width, sizes.epsilon).apply(graph, table)
        reach = 2 * max(furthest, span)
        offsets = np.arange(-reach, reach + 1)
        bucket = log_buckets(offsets, span, furthest) if has_buckets else offsets
        return Distances.of(graph, table, bucket, span, sizes.heads.size, terms)


def _projections(keys: Keys, parts: Tensors, sizes: LayerSizes, terms: tuple[str, ...]) -> dict[str, Linear]:
    """The layers that make keys and queries from embeddings of distances, for every term."""
    kind = "" if keys.boolean("share_att_key", default=False) else "pos_"
    names = {"c2p": f"attention.self.{kind}key_proj", "p2c": f"attention.self.{kind}query_proj"}
    return {term: Linear.of(parts, names[term], sizes.width, sizes.width) for term in terms}


def _layer(parts: Tensors, sizes: LayerSizes) -> PostNormLayer:
    width, names = sizes.width, ("query", "key", "value")
    query, key, value = (Linear.of(parts, f"attention.self.{name}_proj", width, width) for name in names)
    return layer_of(parts, sizes, query, key, value)


def _convolve(writing: Writing, tensors: Tensors, sizes: LayerSizes, embedded: str, x: str) -> str:
    """x and a convolution of the embeddings over neighbouring tokens, through a norm; 0 in padding."""
    keys, graph = writing.keys, writing.graph
    size = keys.size("conv_kernel_size", default=0, least=0)
    if not size:
        keys.ignore("conv_act")
        return x
    if size % 2 == 0:
        raise NotDefinedError(f"'conv_kernel_size' is {size}, and odd ones alone are known")
    with graph.scope("conv"):
        weight = tensors.take("encoder.conv.conv.weight", sizes.width, sizes.width, size)
        bias = tensors.take("encoder.conv.conv.bias", sizes.width)
        transposed = graph.op("Transpose", embedded, perm=[0, 2, 1])
        convolved = graph.op("Conv", transposed, graph.weight(weight), graph.weight(bias), pads=[size // 2, size // 2])
        rows = graph.op("Transpose", convolved, perm=[0, 2, 1])
        is_kept = graph.op("Cast", graph.unsqueeze(MASK, 2), to=9)
        rows = activation_of(keys.text("conv_act", default="tanh"))(graph, graph.op("Where", is_kept, rows, 0.0))
        norm = Norm.of(tensors, "encoder.conv.LayerNorm", sizes.width, sizes.epsilon)
        return graph.op("Mul", norm.apply(graph, add(graph, x, rows)), graph.op("Cast", is_kept, to=1))


_V2 = Version(128100, 24, "attention.self.query_proj.weight", _distances, _layer, _projections, _convolve)
DEBERTA_V2 = Definition(
    "DeBERTa v2",
    of_type("deberta-v2"),
    _encode,
    token_types,
    HEADS,
)
