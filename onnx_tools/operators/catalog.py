# SPDX-License-Identifier: Apache-2.0
"""The operators of the ONNX domain `padfree`, each described once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .linear_specs import (
    EPSILON,
    LINEAR,
    LINEAR_FP8,
    LINEAR_INT8,
    POST_NORM,
    RESULTS,
    WRITES_ACT,
    WRITES_E4M3,
    Y_SCALE,
)
from .spec import (
    AttributeSpec,
    Condition,
    OperatorSpec,
    PluginRange,
    TensorSpec,
    flag,
    in_engines,
    integer,
    later,
    when,
    without,
)

DOMAIN_VERSION = 1

MAX_BIAS_RANGE = 65536
"""The most distances on each side of PadfreeAttention's distance_bias."""

MAX_HEAD_SIZE = 256
"""The largest head of PadfreeAttention's kernels."""

_HEADS = PluginRange(maximum=4096)  # a limit that keeps every stride well within an int
_FUSED_QKV = ("3HD", "H3D")
_APART = "2HD"


def _early(name: str, tensors: str) -> AttributeSpec:
    text = f"1: {tensors} are complete before the previous kernel begins, as inputs of the model are"
    return in_engines(AttributeSpec(name, "int", text, allowed=(0, 1)))


_HAS_PREFIX = later(flag("has_prefix", "whether prefix exists: sequences that begin with another one's tokens"))
_PREFIX = TensorSpec("prefix", "int32", "[F]", when("has_prefix"))  # F is B, or 1 where no sequence has one

_ROUNDED = (
    " y_e4m3 is y, rounded to the type of the activations, divided by y_scale and rounded to nearest even; beyond 448 "
    "it is 448. The plugin has this output for FP16 and BF16."
)

_INDEX = OperatorSpec(
    "PadfreeIndex",
    "Lists the kept slots of a mask, in order. This is the only operator whose number of tokens T depends on data.",
    inputs=(TensorSpec("mask", "int32", "[B,S]"),),
    outputs=(
        TensorSpec("token_index", "int32", "[T]"),  # b*S+s, ascending
        TensorSpec("seq_lens", "int32", "[B]"),
        TensorSpec("num_tokens", "int32", "[]"),
    ),
)

_PACK = OperatorSpec(
    "PadfreePack",
    "Gathers the slots of token_index (b*S+s); an index of -1, or one out of range, gives zeros.",
    inputs=(TensorSpec("x", "act or int32", "[B,S,...]"), TensorSpec("token_index", "int32", "[T]")),
    outputs=(TensorSpec("packed", "act or int32", "[T,...]"),),
)

_UNPACK = OperatorSpec(
    "PadfreeUnpack",
    "Scatters tokens to the slots of token_index (b*S+s), with zeros elsewhere; a token whose index is -1 or out of "
    "range is dropped. B is the size of seq_lens, and S the last size of extent.",
    inputs=(
        TensorSpec("packed", "act or int32", "[T,...]"),
        TensorSpec("token_index", "int32", "[T]"),
        TensorSpec("seq_lens", "int32", "[B]"),
        TensorSpec("extent", "int32", "[*,S]"),
    ),
    outputs=(TensorSpec("x", "act or int32", "[B,S,...]"),),
)

_NUM_HEADS = integer(
    "num_heads", "H of the attention that reads tasks; any number without tasks", 1, letter="H", plugin=_HEADS
)

_CAUSAL_TASKS = later(
    AttributeSpec(
        "causal_tasks",
        "int",
        "1: tasks are ordered by what they cost where queries see no keys after their own",
        allowed=(0, 1),
    )
)

_SCHEDULE = OperatorSpec(
    "PadfreeSchedule",
    "Computes the prefix sums of the lengths: negative lengths count as 0, and no sum exceeds T. With has_extent it "
    "also gives the slot b*S+s of every token (-1 for filler and for s >= S). With has_positions it also gives every "
    "token's position s in its sequence (0 for filler). With has_tasks it also gives the tasks of PadfreeAttention's "
    "Hopper kernel, longest first, for all layers with num_heads heads. With has_prefix, positions of a sequence b "
    "continue from the length of sequence prefix[b], where that is the number of another one.",
    inputs=(
        TensorSpec("seq_lens", "int32", "[B]"),
        TensorSpec("tokens", "int32", "[T]"),
        TensorSpec("extent", "int32", "[S]", when("has_extent")),
        _PREFIX,
    ),
    outputs=(
        TensorSpec("cu_seqlens", "int32", "[B+1]"),
        TensorSpec("token_index", "int32", "[T]", when("has_extent")),
        TensorSpec("positions", "int32", "[T]", when("has_positions")),
        TensorSpec("tasks", "int32", "[L,4]", when("has_tasks")),
    ),
    attributes=(
        flag("has_extent", "whether extent and token_index exist"),
        flag("has_positions", "whether positions are an output, too"),
        flag("has_tasks", "whether tasks exist; only plugins make and read them: the ONNX body gives [1,4]"),
        _NUM_HEADS,
        _HAS_PREFIX,
        _CAUSAL_TASKS,
    ),
)

_EMBEDDING = OperatorSpec(
    "PadfreeEmbedding",
    "Computes the layer norm of word + position + token type embedding. An id out of its table's range contributes "
    f"zeros; filler tokens give zeros. Without positions they count from position_offset in every sequence.{_ROUNDED}",
    inputs=(
        TensorSpec("ids", "int32", "[T]"),
        TensorSpec("token_types", "int32", "[T]", when("has_token_types")),
        TensorSpec("positions", "int32", "[T]", when("has_positions")),
        TensorSpec("cu_seqlens", "int32", "[B+1]", without("schedules")),
        TensorSpec("word_table", "act", "[V,E]"),
        TensorSpec("position_table", "act", "[P,E]", when("has_position_table")),
        TensorSpec("type_table", "act", "[N,E]", when("has_token_types")),
        TensorSpec("gamma", "act", "[E]"),
        TensorSpec("beta", "act", "[E]", when("has_beta")),
        TensorSpec("seq_lens", "int32", "[B]", when("schedules")),
    ),
    outputs=(
        TensorSpec("y", "act", "[T,E]", WRITES_ACT),
        TensorSpec("y_e4m3", "fp8", "[T,E]", WRITES_E4M3),
        TensorSpec("cu_seqlens", "int32", "[B+1]", when("schedules")),
        TensorSpec("tasks", "int32", "[L,4]", when("has_tasks")),
    ),
    attributes=(
        EPSILON,
        integer("position_offset", "position of a sequence's first token, without positions", 0),
        flag("has_token_types", "whether token_types and type_table exist"),
        flag("has_positions", "whether positions are given"),
        flag("has_position_table", "whether position_table exists"),
        flag("has_beta", "whether beta exists"),
        in_engines(flag("schedules", "1: computes cu_seqlens from seq_lens, as PadfreeSchedule does")),
        in_engines(flag("has_tasks", "whether tasks exist, as those of PadfreeSchedule")),
        in_engines(_NUM_HEADS, 1),
        _CAUSAL_TASKS,
        RESULTS,
        Y_SCALE,
        _early("early_ids", "ids and token_types"),
    ),
    requires=((when("has_positions"), when("has_position_table")), (when("has_tasks"), when("schedules"))),
    in_half=(WRITES_E4M3,),
)

_TOKEN_ROWS = OperatorSpec(
    "PadfreeTokenRows",
    "Takes the row of a table that each token's id names, times scale; an id out of the table's range gives zeros. N "
    "is a multiple of 64. moments are those of y, as PadfreeLinear gives them. With schedules it also gives what "
    "PadfreeSchedule does.",
    inputs=(
        TensorSpec("ids", "int32", "[T]"),
        TensorSpec("table", "act", "[V,N]"),
        TensorSpec("seq_lens", "int32", "[B]", when("schedules")),
    ),
    outputs=(
        TensorSpec("y", "act", "[T,N]"),
        TensorSpec("moments", "float32", "[N/64,T,2]", when("has_moments")),
        TensorSpec("cu_seqlens", "int32", "[B+1]", when("schedules")),
        TensorSpec("positions", "int32", "[T]", when("has_positions")),
        TensorSpec("tasks", "int32", "[L,4]", when("has_tasks")),
    ),
    attributes=(
        AttributeSpec("scale", "float", "factor of all rows"),
        flag("has_moments", "whether moments exist"),
        in_engines(flag("schedules", "1: computes cu_seqlens from seq_lens, as PadfreeSchedule does")),
        in_engines(flag("has_positions", "whether positions exist, as those of PadfreeSchedule")),
        in_engines(flag("has_tasks", "whether tasks exist, as those of PadfreeSchedule")),
        in_engines(_NUM_HEADS, 1),
        _CAUSAL_TASKS,
    ),
    requires=((when("has_positions"), when("schedules")), (when("has_tasks"), when("schedules"))),
    plugin_precisions=("fp16", "bf16"),
    in_half=(Condition("has_moments", (0, 1)),),
)

_DISENTANGLED = Condition("bias", ("disentangled",))

_ATTENTION = OperatorSpec(
    "PadfreeAttention",
    "Computes softmax(Q K^T * scale + bias) V within each sequence, head and window, with the softmax in float32. "
    "Filler rows are zeros. Query i sees the keys j from i - window_left to i + window_right; i and j count from 0 in "
    "every sequence. A slope bias is -slopes[h] * |j - i|. A distance bias is distance_bias[h, t], where t is j - i + "
    "R, limited to 0 to 2R. A disentangled bias is scale * (q_i k_position[t] + k_j q_position[t]), where each head "
    "has its own columns, and either table may be missing. Head h reads head h / (H / KVH) of K and V; with a "
    "disentangled bias KVH is H. With has_prefix, the keys of a sequence b come after those of sequence prefix[b], "
    "where that is the number of another one, and i and j count from the first of these; what that sequence's own "
    "prefix is does not matter. F is B, or 1, which means that no sequence has a prefix.",
    inputs=(
        TensorSpec("qk", "act", "[T,H*D+KVH*D]", Condition("qkv_layout", (_APART,))),
        TensorSpec("qkv", "act", "[T,H*D+2*KVH*D]", Condition("qkv_layout", (*_FUSED_QKV, _APART))),
        TensorSpec("q", "act", "[T,H*D]", Condition("qkv_layout", ("separate",))),
        TensorSpec("k", "act", "[T,KVH*D]", Condition("qkv_layout", ("separate",))),
        TensorSpec("v", "act", "[T,KVH*D]", Condition("qkv_layout", ("separate",))),
        TensorSpec("qkv_bias", "act", "[H*D+2*KVH*D]", when("has_qkv_bias")),
        TensorSpec("cu_seqlens", "int32", "[B+1]"),
        TensorSpec("tasks", "int32", "[L,4]", when("has_tasks")),
        TensorSpec("slopes", "float32", "[H]", Condition("bias", ("slope",))),
        TensorSpec("distance_bias", "float32", "[H,2*R+1]", Condition("bias", ("distance",))),
        TensorSpec("k_position", "act", "[2*R+1,H*D]", when("has_k_position")),
        TensorSpec("q_position", "act", "[2*R+1,H*D]", when("has_q_position")),
        _PREFIX,
    ),
    outputs=(
        TensorSpec("y", "act", "[T,H*D]", without("quantized")),
        TensorSpec("y", "fp8", "[T,H*D]", when("quantized")),
    ),
    attributes=(
        integer("num_heads", "H", 1, letter="H", plugin=_HEADS),
        integer("num_kv_heads", "KVH, which divides H: heads of K and V", 1, letter="KVH", plugin=_HEADS),
        integer("head_size", "D", 1, letter="D", plugin=PluginRange(8, MAX_HEAD_SIZE, multiple_of=8)),
        AttributeSpec("scale", "float", "factor of the scores"),
        AttributeSpec(
            "qkv_layout",
            "string",
            "3HD: one tensor with the heads of Q, then those of K, then those of V; H3D: one tensor [T,H,3,D], if KVH "
            "is H; separate: three tensors; 2HD: qk has the heads of Q, then those of K, and qkv is as for 3HD, but "
            "only V is read of it. The bias has the same order (separate and 2HD: q, then k, then v)",
            allowed=(*_FUSED_QKV, "separate", _APART),
            selects_body=True,
        ),
        flag("has_qkv_bias", "whether qkv_bias exists"),
        flag("has_tasks", "whether tasks exist, from a PadfreeSchedule with the same lengths, T and num_heads"),
        in_engines(
            integer(
                "max_seq_len",
                "the longest sequence for which the engine is built, which selects the kernel; 0: unknown",
                0,
            )
        ),
        integer("window_left", "how many keys before its own a query sees; -1: all", -1),
        integer("window_right", "how many keys after its own a query sees; -1: all, 0: causal", -1),
        AttributeSpec(
            "bias",
            "string",
            "what is added to the scores",
            allowed=("none", "slope", "distance", "disentangled"),
            selects_body=True,
        ),
        AttributeSpec(
            "bias_range",
            "int",
            "R of distance_bias, k_position and q_position; any number without them",
            minimum=0,
            maximum=MAX_BIAS_RANGE,
            letter="R",
        ),
        flag("has_k_position", "whether k_position exists, by which rows of Q are multiplied"),
        flag("has_q_position", "whether q_position exists, by which rows of K are multiplied"),
        flag(
            "quantized",
            "whether y is e4m3: results divided by y_scale, beyond 448 as 448; the plugin has this for FP16 and BF16",
        ),
        Y_SCALE,
        _early("early_lengths", "cu_seqlens and tasks"),
        _HAS_PREFIX,
    ),
    requires=(
        (when("has_prefix"), Condition("window_right", (0,))),
        (when("has_k_position"), _DISENTANGLED),
        (when("has_q_position"), _DISENTANGLED),
        (_DISENTANGLED, Condition("window_left", (-1,))),
        (_DISENTANGLED, Condition("window_right", (-1,))),
    ),
    in_half=(when("quantized"),),
)

_PAIRING = AttributeSpec(
    "pairing",
    "string",
    "which columns of a head form pair p; half: p and p + D/2; interleaved: 2p and 2p + 1",
    allowed=("half", "interleaved"),
    selects_body=True,
)

_ROTARY = OperatorSpec(
    "PadfreeRotary",
    "Applies a rotary embedding to the first num_heads * head_size columns; the others are copied. A pair x1, x2 of a "
    "head with the angle a = positions[t] * frequencies[0,p] (in float32) becomes x1 cos(a) - x2 sin(a) and x2 cos(a) "
    "+ x1 sin(a). A frequency of 0 leaves its pair unchanged.",
    inputs=(
        TensorSpec("x", "act", "[T,W]"),
        TensorSpec("positions", "int32", "[T]"),
        TensorSpec("frequencies", "float32", "[1,D/2]"),
    ),
    outputs=(TensorSpec("y", "act", "[T,W]"),),
    attributes=(
        integer("head_size", "D, an even number", 2, letter="D", plugin=PluginRange(multiple_of=2)),
        integer("num_heads", "H: how many heads are rotated, from column 0 on", 1, letter="H"),
        _PAIRING,
    ),
)

_QK_NORM_ROTARY = OperatorSpec(
    "PadfreeQkNormRotary",
    "Computes the RMS norm of each head of Q and K, the first columns of qkv, times q_gamma or k_gamma, and rotates "
    "the results as PadfreeRotary does. Nothing is rounded in between.",
    inputs=(
        TensorSpec("qkv", "act", "[T,H*D+2*KVH*D]"),
        TensorSpec("q_gamma", "act", "[D]"),
        TensorSpec("k_gamma", "act", "[D]"),
        TensorSpec("positions", "int32", "[T]"),
        TensorSpec("frequencies", "float32", "[1,D/2]"),
    ),
    outputs=(TensorSpec("qk", "act", "[T,H*D+KVH*D]"),),
    attributes=(
        AttributeSpec("epsilon", "float", "added to the mean square of a head", minimum=0.0),
        integer("num_heads", "H: heads of Q, from column 0 on", 1, letter="H", plugin=_HEADS),
        integer("num_kv_heads", "KVH: heads of K, after those of Q", 1, letter="KVH", plugin=_HEADS),
        integer("head_size", "D, an even number", 2, letter="D", plugin=PluginRange(multiple_of=2)),
        _PAIRING,
    ),
)

_NORM_RESULTS = AttributeSpec(
    "results",
    "string",
    "the types in which rows are written: act, e4m3, both of these, float32, or act and float32",
    allowed=("act", "e4m3", "both", "fp32", "act_fp32"),
    selects_body=True,
)

_WRITES_FP32 = Condition("results", ("fp32", "act_fp32"))

_LAYER_NORM = OperatorSpec(
    "PadfreeLayerNorm",
    f"Computes the layer norm, or RMS norm, of x + bias + residual over the last axis, with statistics in float32."
    f"{_ROUNDED} y_fp32 is y before it is rounded; the plugin has this output for FP16 and BF16, too. y_first has the "
    "rows of y of each sequence's first token, and zeros for an empty sequence, as PadfreePool gives them; x is then "
    "[T,E]. pooled replaces y_first and is tanh(y_first pooler_weight^T + pooler_bias), where E is a multiple of 8.",
    inputs=(
        TensorSpec("x", "act", "[...,E]"),
        TensorSpec("bias", "act", "[E]", when("has_bias")),
        TensorSpec("residual", "act", "[...,E]", when("has_residual")),
        TensorSpec("gamma", "act", "[E]"),
        TensorSpec("beta", "act", "[E]", when("has_beta")),
        TensorSpec("cu_seqlens", "int32", "[B+1]", when("has_first")),
        TensorSpec("pooler_weight", "act", "[N,E]", when("has_pooler")),
        TensorSpec("pooler_bias", "act", "[N]", when("has_pooler")),
    ),
    outputs=(
        TensorSpec("y", "act", "[...,E]", Condition("results", ("act", "both", "act_fp32"))),
        TensorSpec("y_e4m3", "fp8", "[...,E]", WRITES_E4M3),
        TensorSpec("y_fp32", "float32", "[...,E]", _WRITES_FP32),
        TensorSpec("sum", "act", "[...,E]", when("has_sum")),
        TensorSpec("y_first", "act", "[B,E]", when("has_first"), without("has_pooler")),
        TensorSpec("pooled", "float32", "[B,N]", when("has_pooler")),
    ),
    attributes=(
        EPSILON,
        flag("rms", "1: RMS norm, without subtracting the mean"),
        flag("has_bias", "whether bias exists"),
        flag("has_residual", "whether residual exists"),
        flag("has_beta", "whether beta exists"),
        flag("has_sum", "whether x + bias + residual is an output, too"),
        in_engines(flag("has_first", "whether cu_seqlens and y_first exist")),
        in_engines(
            flag("has_pooler", "whether the pooler's weights, constants as gamma and beta are then, and pooled exist")
        ),
        _early("early_lengths", "cu_seqlens"),
        _NORM_RESULTS,
        Y_SCALE,
    ),
    requires=(
        (when("has_first"), _WRITES_FP32),
        (when("has_pooler"), when("has_first")),
        (when("has_pooler"), without("has_bias")),
        (when("has_pooler"), without("has_residual")),
    ),
    in_half=(WRITES_E4M3, _WRITES_FP32),
)

_OF_TOKENS = ("first", "last", "mean", "max")

_POOL = OperatorSpec(
    "PadfreePool",
    "Gives one row per sequence: that of its first or last token, the mean or the maximum over its tokens, or the row "
    "that x already has for each sequence. An empty sequence gives zeros. With has_norm, the tokens are normalised "
    "first, as by PadfreeLayerNorm before its result is rounded; E is then a multiple of 8 up to 1024. y_fp32 is y "
    "before it is rounded; the plugin has this output, and norms, for FP16 and BF16.",
    inputs=(
        TensorSpec("x", "act", "[T,E]", Condition("mode", _OF_TOKENS)),
        TensorSpec("x", "act", "[B,E]", Condition("mode", ("each",))),
        TensorSpec("cu_seqlens", "int32", "[B+1]"),
        TensorSpec("gamma", "act", "[E]", when("has_norm")),
        TensorSpec("beta", "act", "[E]", when("has_beta")),
    ),
    outputs=(
        TensorSpec("y", "act", "[B,E]", Condition("results", ("act",))),
        TensorSpec("y_fp32", "float32", "[B,E]", Condition("results", ("fp32",))),
    ),
    attributes=(
        in_engines(EPSILON, 0.0),
        AttributeSpec("mode", "string", "which row", allowed=(*_OF_TOKENS, "each"), selects_body=True),
        flag("normalize", "1: divide by max(L2 norm over E, 1e-12)"),
        in_engines(flag("has_norm", "whether rows are normalised first, by gamma and beta, which are constants")),
        in_engines(flag("has_beta", "whether beta exists")),
        in_engines(flag("rms", "1: RMS norm, without subtracting the mean")),
        in_engines(
            AttributeSpec(
                "results", "string", "the type of the rows: act, or float32", allowed=("act", "fp32"), selects_body=True
            ),
            "act",
        ),
        _early("early_lengths", "cu_seqlens"),
    ),
    requires=(
        (when("has_beta"), when("has_norm")),
        (when("has_norm"), Condition("mode", ("first", "last", "mean", "each"))),
    ),
    in_half=(Condition("results", ("fp32",)), when("has_norm")),
)

OPERATORS: Mapping[str, OperatorSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            *(_INDEX, _PACK, _UNPACK, _SCHEDULE, _EMBEDDING, _TOKEN_ROWS, _ATTENTION, _ROTARY, _QK_NORM_ROTARY),
            _LAYER_NORM,
            *(POST_NORM, LINEAR, LINEAR_FP8, LINEAR_INT8),
            _POOL,
        )
    }
)
