# SPDX-License-Identifier: Apache-2.0
"""The cases of the check: every operator in every type, in the variants that have kernels of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from padfree.contract.names import EIGHT_BITS, FP8, PRECISIONS
from padfree.onnx_tools.operators import OPERATORS

from .graphs import (
    FEATURES,
    HEADS,
    LENGTHS,
    MAX_SEQ_LEN,
    MAX_SHORT,
    SHORT_LENGTHS,
    SIZE,
    WIDTH,
    Attributes,
    CaseGraph,
    plain_attributes,
)

RANGE = 128


@dataclass(frozen=True)
class Case:
    """One check. `kind` is the type: fp32, fp16, bf16, fp8, int8 or int32; `make` makes the graph."""

    operator: str
    variant: str
    kind: str
    make: Callable[[], CaseGraph]


_PAIRINGS: Mapping[str, Attributes] = {pairing: {"pairing": pairing} for pairing in ("half", "interleaved")}
_SEPARATE: Attributes = {"head_size": 128, "num_heads": 8, "num_kv_heads": 2, "qkv_layout": "separate"}
_VARIANTS: Mapping[str, Mapping[str, Attributes]] = {
    "PadfreeSchedule": {"offsets, slots, positions": {"has_extent": 1, "has_positions": 1}},
    "PadfreeEmbedding": {"three tables": {"has_token_types": 1, "has_position_table": 1, "has_beta": 1}},
    "PadfreeTokenRows": {
        "moments": {"scale": 27.75, "has_moments": 1},
        "schedule": {"scale": 1.0, "has_moments": 1, "schedules": 1, "has_positions": 1},
    },
    "PadfreeLayerNorm": {
        "bias, residual": {"has_bias": 1, "has_residual": 1, "has_beta": 1},
        "RMS, sum": {"rms": 1, "has_residual": 1, "has_sum": 1},
        "first tokens, pooler": {"has_beta": 1, "has_first": 1, "has_pooler": 1, "results": "fp32"},
    },
    "PadfreePostNorm": {"moments": {"has_moments": 1}},
    "PadfreeRotary": {name: {**pairing, "num_heads": 2 * HEADS} for name, pairing in _PAIRINGS.items()},
    "PadfreeQkNormRotary": {name: {**pairing, "num_kv_heads": HEADS // 3} for name, pairing in _PAIRINGS.items()},
    "PadfreePool": {
        **{mode: {"mode": mode} for mode in ("first", "last", "max")},
        "mean, normalized": {"mode": "mean", "normalize": 1},
        "mean of norms": {"mode": "mean", "has_norm": 1, "has_beta": 1},
    },
    "PadfreeAttention": {
        "plain": {},
        "heads of 32": {"head_size": 32},
        "short sequences": {"max_seq_len": MAX_SHORT},
        "window of 64": {"window_left": 64, "window_right": 64},
        "slopes": {"bias": "slope"},
        "bias by distance": {"bias": "distance", "bias_range": RANGE},
        "disentangled": {"bias": "disentangled", "bias_range": RANGE, "has_k_position": 1, "has_q_position": 1},
        "grouped heads of 128": _SEPARATE,
        "heads of 256": {"head_size": 256, "num_heads": 4},
        "shared prefix": {**_SEPARATE, "has_prefix": 1, "window_right": 0},
    },
    "PadfreeLinear": {
        "bias, GELU": {"activation": "gelu"},
        "residual": {"has_residual": 1},
        "gated, SiLU": {"activation": "silu", "gated": 1},
        "rotary": {"rotary_features": WIDTH},
    },
    "PadfreeLinearFp8": {"bias, GELU": {"activation": "gelu"}, "gated, SiLU": {"activation": "silu", "gated": 1}},
    "PadfreeLinearInt8": {"bias, GELU": {"activation": "gelu"}},
}
"""What differs from plain nodes, by operator and name."""
_CHAINS: Mapping[str, tuple[str, Attributes, Attributes, Mapping[str, str]]] = {
    "PadfreeLinear": ("norms folded", {"has_moments": 1}, {"has_x_moments": 1}, {"x": "y", "x_moments": "moments"}),
    "PadfreeLinearFp8": ("two GEMMs", {"activation": "relu", "results": "e4m3"}, {}, {"x": "y_e4m3"}),
    "PadfreeLinearInt8": ("two GEMMs", {"activation": "relu", "results": "int8"}, {}, {"x": "y_int8"}),
}
"""By operator: a name, two GEMMs, and which results of the first are which inputs of the second."""


def all_cases() -> list[Case]:
    """All cases; those that others rely on come first."""
    return [*_cases()]


def _cases() -> Iterator[Case]:
    for kind in PRECISIONS:
        yield Case("PadfreeIndex, Pack, Unpack", "mask with holes", kind, partial(_there_and_back, kind))
    for operator, variants in _VARIANTS.items():
        for number, (variant, attributes) in enumerate(variants.items()):
            for kind in _kinds(operator, attributes, is_first=number == 0):
                yield Case(operator, variant, kind, partial(_alone, operator, kind, attributes))
        if operator in _CHAINS:
            variant, first, second, connections = _CHAINS[operator]
            for kind in _kinds(operator, first):
                yield Case(operator, variant, kind, partial(_chain, operator, kind, first, second, connections))


def _kinds(operator: str, attributes: Attributes, *, is_first: bool = False) -> Sequence[str]:
    """The types that a plugin has kernels for; results in e4m3 are checked in an operator's first variant."""
    spec, values = OPERATORS[operator], plain_attributes(operator, attributes)
    for kind in EIGHT_BITS:
        if any(item.type == kind for item in spec.inputs):
            return [kind]
    if all(item.type == "int32" for item in (*spec.inputs, *spec.outputs)):
        return ["int32"]
    in_half = any(condition.holds(values) for condition in spec.in_half)
    wide = [kind for kind in spec.plugin_precisions if kind != "fp32" or not in_half]
    return wide + [FP8] * (is_first and any(item.type == FP8 for item in spec.outputs))


def _there_and_back(kind: str) -> CaseGraph:
    graph = CaseGraph(kind, interface="padded")
    index = graph.operator("PadfreeIndex")
    packed = graph.operator("PadfreePack", tensors=index)
    outputs = graph.operator("PadfreeUnpack", tensors={**index, **packed, "extent": "mask"})
    return graph.give(outputs["x"], index["seq_lens"])


def _alone(operator: str, kind: str, attributes: Attributes) -> CaseGraph:
    is_short = attributes.get("max_seq_len") == MAX_SHORT
    graph = CaseGraph(kind, SHORT_LENGTHS if is_short else LENGTHS)
    return graph.give(*graph.operator(operator, _complete(operator, kind, attributes)).values())


def _chain(
    operator: str, kind: str, first: Attributes, second: Attributes, connections: Mapping[str, str]
) -> CaseGraph:
    graph = CaseGraph(kind)
    up = graph.operator(operator, _complete(operator, kind, first))
    inputs = {name: up[result] for name, result in connections.items()}
    down = graph.operator(operator, _complete(operator, kind, second), inputs, sizes={"K": FEATURES, "N": WIDTH})
    return graph.give(*(tensor for name, tensor in up.items() if name == "moments"), *down.values())


def _complete(operator: str, kind: str, attributes: Attributes) -> Attributes:
    """The attributes with those that follow from them and from the type."""
    if operator == "PadfreeLinear":
        return {"has_bias": 1, **attributes}
    if operator == "PadfreeAttention":
        return _of_attention({"quantized": int(kind == FP8), **attributes})
    return {**attributes, "results": "e4m3"} if kind == FP8 and operator != "PadfreeLinearFp8" else attributes


def _of_attention(attributes: Attributes) -> Attributes:
    """Scores have a standard deviation of about 1; kernels for short sequences read no list of tasks."""
    own = {"qkv_layout": "3HD", "max_seq_len": MAX_SEQ_LEN, **attributes}
    terms = 3 if own.get("bias") == "disentangled" else 1
    return {
        "num_kv_heads": own.get("num_heads", HEADS),
        "scale": (terms * int(own.get("head_size", SIZE))) ** -0.5,
        "has_qkv_bias": int(own["qkv_layout"] == "3HD"),
        "has_tasks": int(own["max_seq_len"] != MAX_SHORT),
        **own,
    }
