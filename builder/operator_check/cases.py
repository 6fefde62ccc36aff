# SPDX-License-Identifier: Apache-2.0
"""The cases of the check: every operator in every type, in the variants that have kernels of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from padfree.contract.names import FP8, INT8

from . import int8_cases
from .graphs import LENGTHS, MAX_SEQ_LEN, MAX_SHORT, PARENTS, SHORT_LENGTHS, VOCABULARY, CaseGraph

HEADS, SIZE = 12, 64
WIDTH = HEADS * SIZE
FEATURES = 1536
POSITIONS = 512
RANGE = 128
Y_SCALE = 2.0**-5
FULL, HALVES = ("fp32", "fp16", "bf16"), ("fp16", "bf16")


@dataclass(frozen=True)
class Case:
    """One check. `kind` is the type: fp32, fp16, bf16, fp8, int8 or int32.

    make: the graph. flops: of the operator, for its floor; 0 where bytes are all that counts.
    """

    operator: str
    variant: str
    kind: str
    make: Callable[[], CaseGraph]
    flops: float = 0.0

    @property
    def name(self) -> str:
        """Such as "PadfreeAttention, window, fp16"."""
        return f"{self.operator}, {self.variant}, {self.kind}"


def all_cases() -> list[Case]:
    """All cases; those that others rely on come first."""
    return [*_layout(), *_rows(), *_attention(), *_linear(), *_eight_bits()]


def _layout() -> Iterator[Case]:
    def schedule() -> CaseGraph:
        graph = CaseGraph("fp32")
        outputs = graph.schedule(subject=True, has_extent=1, has_positions=1, num_heads=1)
        graph.output(outputs["cu_seqlens"], tokens=None, kind="int32")
        graph.output(outputs["token_index"], tokens=0, kind="int32")
        graph.output(outputs["positions"], tokens=0, kind="int32")
        return graph

    def through(kind: str) -> CaseGraph:
        graph = CaseGraph(kind, interface="padded")
        x, mask = graph.grid("x", WIDTH), graph.mask()
        index = graph.node("PadfreeIndex", {"mask": mask})
        packed = graph.node("PadfreePack", {"x": x, "token_index": index["token_index"]})
        outputs = graph.node(
            "PadfreeUnpack",
            {
                "packed": packed["packed"],
                "token_index": index["token_index"],
                "seq_lens": index["seq_lens"],
                "extent": mask,
            },
        )
        graph.output(outputs["x"], tokens=None)
        graph.output(index["seq_lens"], tokens=None, kind="int32")
        return graph

    yield Case("PadfreeSchedule", "offsets, slots, positions", "int32", schedule)
    for kind in FULL:
        yield Case("PadfreeIndex, Pack, Unpack", "mask with holes", kind, _bound(through, kind))


def _rows() -> Iterator[Case]:
    for kind in FULL:
        yield Case("PadfreeEmbedding", "three tables", kind, _bound(embedding, kind))
        yield Case("PadfreeLayerNorm", "bias, residual", kind, _bound(layer_norm, kind))
        yield Case("PadfreeLayerNorm", "RMS, sum", kind, _bound(rms_norm, kind))
        for pairing in ("half", "interleaved"):
            yield Case("PadfreeRotary", pairing, kind, _bound(rotary, kind, pairing))
            yield Case("PadfreeQkNormRotary", pairing, kind, _bound(qk_norm_rotary, kind, pairing))
        for mode, normalize in (("first", 0), ("last", 0), ("mean", 1), ("max", 0)):
            variant = f"{mode}, normalized" if normalize else mode
            yield Case("PadfreePool", variant, kind, _bound(pool, kind, mode, normalize))
    for kind in HALVES:
        yield Case("PadfreeLayerNorm", "first tokens, pooler", kind, _bound(pooler, kind))
        yield Case("PadfreePostNorm", "moments", kind, _bound(post_norm, kind))
        yield Case("PadfreePool", "mean of norms", kind, _bound(pool, kind, "mean", 0, has_norm=1))


def embedding(kind: str) -> CaseGraph:
    """Words, positions and types; in e4m3 the numbers are widened by a GEMM with 1."""
    graph = CaseGraph(kind)
    cu_seqlens = graph.schedule(num_heads=1)["cu_seqlens"]
    inputs = {"ids": "ids", "token_types": graph.ids("types", 2), "cu_seqlens": cu_seqlens, **_norm_weights(graph)}
    for name, count in (("word_table", VOCABULARY), ("position_table", POSITIONS), ("type_table", 2)):
        inputs[name] = graph.weight(name, count, WIDTH)
    flags: dict[str, Any] = {"has_token_types": 1, "has_position_table": 1, "has_beta": 1, "num_heads": 1}
    _add_outputs(graph, graph.node("PadfreeEmbedding", inputs, **flags, **_results(kind)))
    return graph


def layer_norm(kind: str) -> CaseGraph:
    """A norm of a sum."""
    graph = CaseGraph(kind)
    _lengths(graph)
    inputs = {"x": graph.rows("x", WIDTH), "residual": graph.rows("residual", WIDTH), **_norm_weights(graph)}
    inputs["bias"] = graph.weight("bias", WIDTH)
    flags: dict[str, Any] = {"has_bias": 1, "has_residual": 1, "has_beta": 1}
    _add_outputs(graph, graph.node("PadfreeLayerNorm", inputs, **flags, **_results(kind)))
    return graph


def rms_norm(kind: str) -> CaseGraph:
    """A norm without a mean, and the sum that it is of."""
    graph = CaseGraph(kind)
    _lengths(graph)
    inputs = {"x": graph.rows("x", WIDTH), "residual": graph.rows("residual", WIDTH), **_norm_weights(graph)}
    outputs = graph.node("PadfreeLayerNorm", inputs, rms=1, has_residual=1, has_sum=1)
    graph.output(outputs["y"])
    graph.output(outputs["sum"])
    return graph


def post_norm(kind: str) -> CaseGraph:
    """The sum of a residual and a norm, and its moments."""
    graph = CaseGraph(kind)
    _lengths(graph)
    inputs = {"x": graph.rows("x", WIDTH), "residual": graph.rows("residual", WIDTH)}
    inputs["gamma"] = graph.weight("gamma", WIDTH)
    outputs = graph.node("PadfreePostNorm", inputs, epsilon=1e-6, has_moments=1)
    graph.output(outputs["y"])
    graph.output(outputs["moments"], tokens=1, kind="float32")
    return graph


def pooler(kind: str) -> CaseGraph:
    """What the last norm of a BERT gives."""
    graph = CaseGraph(kind)
    cu_seqlens = graph.schedule(num_heads=1)["cu_seqlens"]
    inputs = {"x": graph.rows("x", WIDTH), "cu_seqlens": cu_seqlens, **_norm_weights(graph)}
    inputs["pooler_weight"] = graph.weight("pooler_weight", WIDTH, WIDTH, size=WIDTH**-0.5)
    inputs["pooler_bias"] = graph.weight("pooler_bias", WIDTH)
    outputs = graph.node("PadfreeLayerNorm", inputs, has_beta=1, has_first=1, has_pooler=1, results="fp32")
    graph.output(outputs["y_fp32"], kind="float32")
    graph.output(outputs["pooled"], tokens=None, kind="float32")
    return graph


def rotary(kind: str, pairing: str) -> CaseGraph:
    """Heads of queries and keys; the columns of values are copied."""
    graph = CaseGraph(kind)
    positions = graph.schedule(has_positions=1, num_heads=1)["positions"]
    frequencies = graph.constant("frequencies", _frequencies(SIZE)[None])
    inputs = {"x": graph.rows("x", 3 * WIDTH), "positions": positions, "frequencies": frequencies}
    outputs = graph.node("PadfreeRotary", inputs, head_size=SIZE, num_heads=2 * HEADS, pairing=pairing)
    graph.output(outputs["y"])
    return graph


def qk_norm_rotary(kind: str, pairing: str) -> CaseGraph:
    """Heads of queries, and a third as many of keys."""
    graph, heads, kv_heads = CaseGraph(kind), HEADS, HEADS // 3
    positions = graph.schedule(has_positions=1, num_heads=1)["positions"]
    inputs = {"qkv": graph.rows("qkv", (heads + 2 * kv_heads) * SIZE)}
    inputs |= {name: graph.weight(name, SIZE) for name in ("q_gamma", "k_gamma")}
    inputs |= {"positions": positions, "frequencies": graph.constant("frequencies", _frequencies(SIZE)[None])}
    outputs = graph.node(
        "PadfreeQkNormRotary",
        inputs,
        epsilon=1e-6,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=SIZE,
        pairing=pairing,
    )
    graph.output(outputs["qk"])
    return graph


def pool(kind: str, mode: str, normalize: int, has_norm: int = 0) -> CaseGraph:
    """One row per sequence."""
    graph = CaseGraph(kind)
    cu_seqlens = graph.schedule(num_heads=1)["cu_seqlens"]
    inputs = {"x": graph.rows("x", WIDTH), "cu_seqlens": cu_seqlens, **_norm_weights(graph)}
    flags: dict[str, Any] = {"has_norm": has_norm, "has_beta": has_norm}
    outputs = graph.node("PadfreePool", inputs, mode=mode, normalize=normalize, **flags)
    graph.output(outputs["y"], tokens=None)
    return graph


def _attention() -> Iterator[Case]:
    plain: dict[str, Any] = {}
    variants: dict[str, dict[str, Any]] = {
        "plain": plain,
        "heads of 32": {"size": 32},
        "short sequences": {"lengths": SHORT_LENGTHS},
        "window of 64": {"window": 64},
        "slopes": {"bias": "slope"},
        "bias by distance": {"bias": "distance"},
        "disentangled": {"bias": "disentangled"},
        "grouped heads of 128": {"size": 128, "heads": 8, "kv_heads": 2},
        "heads of 256": {"size": 256, "heads": 4},
        "shared prefix": {"size": 128, "heads": 8, "kv_heads": 2, "continues": True},
    }
    for variant, options in variants.items():
        for kind in FULL:
            width = options.get("heads", HEADS) * options.get("size", SIZE)
            most = 129 if "window" in options else math.inf
            flops = 4.0 * width * sum(min(length, most) * length for length in options.get("lengths", LENGTHS))
            yield Case("PadfreeAttention", variant, kind, _bound(attention, kind, **options), flops)


def attention(
    kind: str,
    *,
    size: int = SIZE,
    heads: int = HEADS,
    kv_heads: int = 0,
    window: int = -1,
    bias: str = "none",
    lengths: Sequence[int] = LENGTHS,
    continues: bool = False,
) -> CaseGraph:
    """Scores with a standard deviation of about 1, and biases. `continues`: causal, after the tokens of PARENTS."""
    graph = CaseGraph(kind, lengths)
    has_tasks = int(max(lengths) > MAX_SHORT)  # kernels for short sequences read no list
    flags: dict[str, Any] = {"num_heads": heads, "has_tasks": has_tasks}
    inputs = graph.schedule(**flags)
    attributes: dict[str, Any] = {
        **flags,
        "num_kv_heads": kv_heads or heads,
        "head_size": size,
        "scale": 1 / math.sqrt(size),
        "window_left": window,
        "window_right": window,
        "bias": bias,
        "max_seq_len": MAX_SEQ_LEN if has_tasks else MAX_SHORT,
    }
    width, kv_width = heads * size, (kv_heads or heads) * size
    if kv_heads:
        inputs |= {name: graph.rows(name, wide) for name, wide in (("q", width), ("k", kv_width), ("v", kv_width))}
        attributes["qkv_layout"] = "separate"
    else:
        inputs |= {"qkv": graph.rows("qkv", 3 * width), "qkv_bias": graph.weight("qkv_bias", 3 * width)}
        attributes |= {"qkv_layout": "3HD", "has_qkv_bias": 1}
    inputs |= _positions(graph, attributes, heads, width)
    if continues:
        inputs["prefix"] = graph.prefix(PARENTS)
        attributes |= {"has_prefix": 1, "window_right": 0}
    attributes |= {"quantized": 1, "y_scale": Y_SCALE} if kind == FP8 else {}
    outputs = graph.node("PadfreeAttention", inputs, **attributes)
    if kind == FP8:
        _widen(graph, outputs["y"], width)
    else:
        graph.output(outputs["y"])
    return graph


def _positions(graph: CaseGraph, attributes: dict[str, Any], heads: int, width: int) -> dict[str, str]:
    """The inputs that go with attention's bias; attributes are completed."""
    if attributes["bias"] == "none":
        return {}
    if attributes["bias"] == "slope":
        return {"slopes": graph.constant("slopes", (2.0 ** -np.arange(1, heads + 1)).astype(np.float32))}
    attributes["bias_range"] = RANGE
    if attributes["bias"] == "distance":
        values = np.random.default_rng(1).standard_normal((heads, 2 * RANGE + 1)).astype(np.float32)
        return {"distance_bias": graph.constant("distance_bias", values)}
    attributes |= {"has_k_position": 1, "has_q_position": 1, "scale": attributes["scale"] / math.sqrt(3)}
    return {name: graph.weight(name, 2 * RANGE + 1, width) for name in ("k_position", "q_position")}


def _linear() -> Iterator[Case]:
    tokens = CaseGraph("fp32").tokens
    flops = 2.0 * tokens * WIDTH * FEATURES
    for kind in HALVES:
        yield Case("PadfreeLinear", "bias, GELU", kind, _bound(linear, kind, activation="gelu"), flops)
        yield Case("PadfreeLinear", "residual", kind, _bound(linear, kind, has_residual=1), flops)
        yield Case("PadfreeLinear", "gated, SiLU", kind, _bound(linear, kind, activation="silu", gated=1), flops)
        yield Case("PadfreeLinear", "rotary", kind, _bound(linear, kind, rotary_features=WIDTH), flops)
        yield Case("PadfreeLinear", "norms folded", kind, _bound(folded_norms, kind), 2 * flops)


def linear(kind: str, **attributes: Any) -> CaseGraph:
    """A GEMM and what follows it."""
    graph = CaseGraph(kind)
    schedule = graph.schedule(has_positions=1, num_heads=1) if attributes.get("rotary_features") else {}
    _lengths(graph)
    inputs = {"x": graph.rows("x", WIDTH), **_operands(graph, WIDTH, FEATURES, ""), **schedule}
    if attributes.get("has_residual"):
        inputs["residual"] = graph.rows("residual", FEATURES)
    if attributes.get("rotary_features"):
        inputs["frequencies"] = graph.constant("frequencies", _frequencies(attributes["rotary_features"]))
    graph.output(graph.node("PadfreeLinear", inputs, has_bias=1, **attributes)["y"])
    return graph


def folded_norms(kind: str) -> CaseGraph:
    """Two GEMMs: the second one norms its input with the moments that the first one gives."""
    graph = CaseGraph(kind)
    _lengths(graph)
    inputs = {"x": graph.rows("x", WIDTH), **_operands(graph, WIDTH, FEATURES, "_up")}
    up = graph.node("PadfreeLinear", inputs, has_bias=1, has_moments=1)
    inputs = {"x": up["y"], "x_moments": up["moments"], **_operands(graph, FEATURES, WIDTH, "_down")}
    down = graph.node("PadfreeLinear", inputs, has_bias=1, has_x_moments=1, x_epsilon=1e-5)
    graph.output(up["moments"], tokens=1, kind="float32")
    graph.output(down["y"])
    return graph


def _eight_bits() -> Iterator[Case]:
    yield Case("PadfreeEmbedding", "three tables", FP8, _bound(embedding, FP8))
    yield Case("PadfreeLayerNorm", "bias, residual", FP8, _bound(layer_norm, FP8))
    yield Case("PadfreeAttention", "plain", FP8, _bound(attention, FP8))
    flops = 2.0 * CaseGraph("fp32").tokens * WIDTH * FEATURES
    yield Case("PadfreeLinearFp8", "bias, GELU", FP8, _bound(linear_fp8, activation="gelu"), flops)
    yield Case("PadfreeLinearFp8", "gated, SiLU", FP8, _bound(linear_fp8, activation="silu", gated=1), flops)
    yield Case("PadfreeLinearFp8", "two GEMMs", FP8, two_gemms, 2 * flops)
    for number, (variant, make) in enumerate(int8_cases.MAKERS.items(), 1):
        yield Case("PadfreeLinearInt8", variant, INT8, _bound(make, WIDTH, FEATURES), number * flops)


def linear_fp8(**attributes: Any) -> CaseGraph:
    """A GEMM of rows that a norm gives in e4m3."""
    graph = CaseGraph(FP8)
    rows = _e4m3_rows(graph)
    inputs = {"x": rows, **_e4m3_operands(graph, WIDTH, FEATURES, "")}
    graph.output(graph.node("PadfreeLinearFp8", inputs, results="act", **attributes)["y"])
    return graph


def two_gemms() -> CaseGraph:
    """The first one's results are e4m3."""
    graph = CaseGraph(FP8)
    inputs = {"x": _e4m3_rows(graph), **_e4m3_operands(graph, WIDTH, FEATURES, "_up")}
    up = graph.node("PadfreeLinearFp8", inputs, activation="relu", results="e4m3", y_scale=Y_SCALE)
    inputs = {"x": up["y_e4m3"], **_e4m3_operands(graph, FEATURES, WIDTH, "_down")}
    graph.output(graph.node("PadfreeLinearFp8", inputs, results="act")["y"])
    return graph


def _bound(make: Callable[..., CaseGraph], *arguments: Any, **options: Any) -> Callable[[], CaseGraph]:
    return lambda: make(*arguments, **options)


def _lengths(graph: CaseGraph) -> None:
    """Makes the lengths an output where an operator does not read them: sessions want them of every packed model."""
    if "seq_lens" not in graph.feeds:
        graph.output(graph.schedule(num_heads=1)["cu_seqlens"], tokens=None, kind="int32")


def _results(kind: str) -> dict[str, Any]:
    return {"results": "e4m3", "y_scale": Y_SCALE} if kind == FP8 else {}


def _add_outputs(graph: CaseGraph, outputs: dict[str, str]) -> None:
    """Makes rows of norms outputs, whatever their type."""
    if graph.kind == FP8:
        _widen(graph, outputs["y_e4m3"], WIDTH)
    else:
        graph.output(outputs["y"])


def _widen(graph: CaseGraph, rows: str, width: int) -> None:
    """Makes rows in e4m3 outputs, through a GEMM with 1 that gives fp16: engines have no outputs in e4m3."""
    inputs = {
        "x": rows,
        "weight": graph.constant("one", np.eye(width, dtype=np.float32).astype(ml_dtypes.float8_e4m3fn)),
        "scale": graph.constant("one_scale", np.full(width, Y_SCALE, np.float32)),
        "bias": graph.weight("no_bias", width, size=0.0),
    }
    graph.output(graph.node("PadfreeLinearFp8", inputs, subject=False, results="act")["y"])


def _norm_weights(graph: CaseGraph) -> dict[str, str]:
    return {"gamma": graph.weight("gamma", WIDTH, size=0.1, mean=1.0), "beta": graph.weight("beta", WIDTH, size=0.1)}


def _operands(graph: CaseGraph, depth: int, features: int, suffix: str) -> dict[str, str]:
    weight = graph.weight(f"weight{suffix}", depth, features, size=depth**-0.5)
    return {"weight": weight, "bias": graph.weight(f"bias{suffix}", features)}


def _e4m3_rows(graph: CaseGraph) -> str:
    _lengths(graph)
    inputs = {"x": graph.rows("x", WIDTH), **_norm_weights(graph)}
    flags: dict[str, Any] = {"has_beta": 1, "results": "e4m3", "y_scale": Y_SCALE}
    return graph.node("PadfreeLayerNorm", inputs, subject=False, **flags)["y_e4m3"]


def _e4m3_operands(graph: CaseGraph, depth: int, features: int, suffix: str) -> dict[str, str]:
    weight = (np.random.default_rng(2).standard_normal((features, depth)) * 64).astype(np.float32)
    scale = np.full(features, Y_SCALE / 64 * depth**-0.5, np.float32)
    return {
        "weight": graph.constant(f"weight{suffix}", weight.astype(ml_dtypes.float8_e4m3fn)),
        "scale": graph.constant(f"scale{suffix}", scale),
        "bias": graph.weight(f"bias{suffix}", features),
    }


def _frequencies(size: int) -> Any:
    """float32 [size / 2], as rotary embeddings have them; larger ones than 64 repeat those of heads of 64."""
    one = 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
    return np.tile(one, -(-size // SIZE))[: size // 2].astype(np.float32)
