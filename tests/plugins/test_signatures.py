# SPDX-License-Identifier: Apache-2.0
"""Shapes, types and formats of every plugin compared with the operators' description, and what the plugins refuse."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from padfree.onnx_tools.operators import OPERATORS
from padfree.onnx_tools.operators.spec import AttributeValue, TensorSpec

from tests.support.samples import (
    LETTERS,
    PLAIN_LINEAR,
    PLAIN_LINEAR_FP8,
    PLAIN_NORM,
    concrete_shape,
    variants,
)

from .expressions import ExpressionBuilder, Size, SizeTensor
from .plugin_abi import (
    BF16,
    BOOL,
    CHW32,
    FP8,
    FP16,
    FP32,
    INT8,
    INT32,
    INT64,
    LINEAR,
    LogCapture,
    Plugin,
    PluginLibrary,
)

ACTIVATIONS = {"fp32": FP32, "fp16": FP16, "bf16": BF16}


def create(library: PluginLibrary, operator: str, attributes: dict[str, AttributeValue]) -> Plugin:
    plugin = library.create(operator, attributes)
    assert plugin is not None
    return plugin


def tensors(operator: str, attributes: dict[str, AttributeValue]) -> tuple[list[TensorSpec], list[TensorSpec]]:
    spec = OPERATORS[operator]
    return list(spec.inputs_for(attributes)), list(spec.outputs_for(attributes))


def types_of(specs: Sequence[TensorSpec], activation: int) -> list[int]:
    return [{"int32": INT32, "float32": FP32, "fp8": FP8, "int8": INT8}.get(spec.type, activation) for spec in specs]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("constant", [False, True], ids=["dynamic", "static"])
def test_output_shapes(library: PluginLibrary, operator: str, constant: bool) -> None:
    for attributes in variants(operator):
        inputs, outputs = tensors(operator, attributes)
        plugin = create(library, operator, attributes)
        builder = ExpressionBuilder(counted=LETTERS["T"])
        sizes = [[Size(size, constant) for size in concrete_shape(spec)] for spec in inputs]
        assert builder.output_shapes(plugin, sizes) == [concrete_shape(spec) for spec in outputs], attributes
        slots = LETTERS["B"] * LETTERS["S"]
        counted = [SizeTensor(output=2, opt=-(-slots // 2), upper=slots)] if operator == "PadfreeIndex" else []
        assert builder.size_tensors == counted
        assert plugin.on_shape_change([concrete_shape(spec) for spec in inputs])
        plugin.destroy()


@pytest.mark.parametrize("operator", OPERATORS)
def test_shapes_with_nothing_in_them(library: PluginLibrary, operator: str) -> None:
    letters = {**LETTERS, "T": 0, "B": 0}
    attributes = next(variants(operator))
    plugin = create(library, operator, attributes)
    assert plugin.on_shape_change([concrete_shape(spec, letters) for spec in tensors(operator, attributes)[0]])
    plugin.destroy()


@pytest.mark.parametrize("operator", OPERATORS)
def test_types_and_formats(library: PluginLibrary, operator: str) -> None:
    for attributes in variants(operator):
        inputs, outputs = tensors(operator, attributes)
        everything = [*inputs, *outputs]
        plugin = create(library, operator, attributes)
        precisions = OPERATORS[operator].plugin_precisions
        narrow = attributes.get("quantized") or attributes.get("results", "act") != "act" or attributes.get("has_norm")
        allowed = [ACTIVATIONS[name] for name in precisions if name != "fp32" or not narrow]
        if any(spec.type == "act or int32" for spec in inputs):
            allowed.append(INT32)
        for activation in allowed:
            types = types_of(everything, activation)
            assert plugin.output_types(types[: len(inputs)]) == types[len(inputs) :]
            for position in range(len(types)):
                assert plugin.supports(position, types)
                formats = [LINEAR] * len(types)
                formats[position] = CHW32
                assert not plugin.supports(position, types, formats)
        for position, spec in enumerate(everything):
            bad = {
                "act": [INT32, FP8],
                "int32": [FP16, FP8],
                "float32": [INT32, FP16, BF16, FP8],
                "fp8": [INT32, FP16, FP32],
                "int8": [INT32, FP16, FP32, FP8],
                "act or int32": [FP8],
            }[spec.type]
            unknown = [kind for kind in ACTIVATIONS.values() if kind not in allowed] if spec.type != "float32" else []
            bad += [] if spec.type == "int8" else [INT8]
            for wrong in [BOOL, INT64, *bad, *unknown]:
                types = types_of(everything, allowed[0])
                types[position] = wrong
                assert not plugin.supports(position, types), (spec.name, wrong)
        plugin.destroy()


def test_mixed_activation_types_are_refused(library: PluginLibrary, log: LogCapture) -> None:
    plugin = create(library, "PadfreeLayerNorm", {**PLAIN_NORM, "has_beta": 1})
    assert plugin.output_types([FP16, FP16, FP32]) is None
    assert "input beta has type FP32; allowed: FP16 as input x; cast it in the graph" in log.text()
    assert not plugin.supports(2, [FP16, FP16, FP32, FP16])
    plugin.destroy()


def test_rows_of_norms_in_e4m3_stand_beside_half_precision_alone(library: PluginLibrary, log: LogCapture) -> None:
    plugin = create(library, "PadfreeLayerNorm", {**PLAIN_NORM, "has_sum": 1, "results": "e4m3", "y_scale": 0.5})
    assert plugin.output_types([BF16, BF16]) == [FP8, BF16]
    assert plugin.supports(2, [FP16, FP16, FP8, FP16])
    assert not plugin.supports(2, [FP16, FP16, FP16, FP16])
    assert plugin.output_types([FP32, FP32]) is None
    assert "input x has type FP32; allowed: FP16, BF16; cast it in the graph" in log.text()
    plugin.destroy()


def test_linear_has_no_kernel_for_fp32(library: PluginLibrary, log: LogCapture) -> None:
    plugin = create(library, "PadfreeLinear", PLAIN_LINEAR)
    assert plugin.output_types([FP32, FP32]) is None
    assert "input x has type FP32; allowed: FP16, BF16; cast it in the graph" in log.text()
    plugin.destroy()


def test_gemms_of_e4m3_take_it_alone(library: PluginLibrary, log: LogCapture) -> None:
    plugin = create(library, "PadfreeLinearFp8", {**PLAIN_LINEAR_FP8, "results": "both"})
    assert plugin.output_types([FP8, FP8, FP32, BF16]) == [BF16, FP8]
    assert plugin.output_types([FP16, FP8, FP32, FP16]) is None
    assert "input x has type FP16; allowed: FP8; cast it in the graph" in log.text()
    assert plugin.output_types([FP8, FP8, FP32, FP32]) is None
    assert "input bias has type FP32; allowed: FP16, BF16; cast it in the graph" in log.text()
    plugin.destroy()


def test_a_type_that_no_kernel_has_is_refused(library: PluginLibrary, log: LogCapture) -> None:
    plugin = create(library, "PadfreeIndex", {})
    assert plugin.output_types([INT64]) is None
    assert "PadfreeIndex 'node_1': input mask has type INT64; allowed: INT32; cast it in the graph" in log.text()
    plugin.destroy()


@pytest.mark.parametrize(
    ("operator", "changes", "shapes", "message"),
    [
        ("PadfreePool", {}, [(7, 16, 1), (4,)], "input x has shape [7,16,1]; allowed: [T,E]"),
        ("PadfreePool", {}, [(7, 16), (0,)], "input cu_seqlens has shape [0]; allowed: [B+1] with B at least 0"),
        ("PadfreePool", {}, [(7, 16)], "the node has 1 inputs; allowed with its attributes: 2 (x, cu_seqlens)"),
        ("PadfreePool", {}, [(7, 2**31), (4,)], "allowed: [T,E], sizes up to 2147483647"),
        ("PadfreePool", {"mode": "each"}, [(7, 16), (4,)], "input cu_seqlens has shape [4]; allowed: [B+1] with B = 7"),
        (
            "PadfreePool",
            {"has_norm": 1, "has_beta": 0},
            [(7, 12), (4,), (12,)],
            "E is 12 with has_norm 1; allowed: multiples of 8 up to 1024",
        ),
        (
            "PadfreePool",
            {"has_norm": 1, "has_beta": 0},
            [(7, 1032), (4,), (1032,)],
            "E is 1032 with has_norm 1; allowed: multiples of 8 up to 1024",
        ),
        (
            "PadfreeLayerNorm",
            {"has_first": 1, "has_pooler": 1, "results": "fp32", "has_bias": 0, "has_residual": 0, "has_beta": 0},
            [(7, 12), (12,), (4,), (5, 12), (5,)],
            "E is 12 with has_pooler 1; allowed: multiples of 8",
        ),
        ("PadfreeAttention", {"qkv_layout": "3HD"}, [(7, 32), (4,)], "input qkv has shape [7,32]; allowed: [T,48]"),
        (
            "PadfreeAttention",
            {"qkv_layout": "separate"},
            [(7, 16), (6, 16), (7, 16), (4,)],
            "input k has shape [6,16]; allowed: [T,16] with T = 7 as in input q",
        ),
        (
            "PadfreeAttention",
            {"bias": "distance", "has_qkv_bias": 0, "has_tasks": 0},
            [(7, 48), (4,), (2, 8)],
            "input distance_bias has shape [2,8]; allowed: [2,7]",
        ),
        (
            "PadfreeAttention",
            {
                "bias": "disentangled",
                "window_left": -1,
                "has_qkv_bias": 0,
                "has_tasks": 0,
                "has_k_position": 0,
                "has_q_position": 1,
            },
            [(7, 48), (4,), (7, 8)],
            "input q_position has shape [7,8]; allowed: [7,16]",
        ),
        (
            "PadfreeAttention",
            {"bias": "slope", "has_qkv_bias": 0, "has_tasks": 0},
            [(7, 48), (4,), (3,)],
            "input slopes has shape [3]; allowed: [2]",
        ),
        (
            "PadfreeLayerNorm",
            {"has_residual": 1},
            [(4, 6, 16), (24, 16), (16,)],
            "input residual has shape [24,16]; allowed: [...,E] with ",
        ),
        ("PadfreeLayerNorm", {}, [(), (16,)], "input x has shape []; allowed: [...,E]"),
        (
            "PadfreeLinear",
            {"has_residual": 0},
            [(7, 12), (12, 8)],
            "the weight has K = 12; allowed: multiples of 8; build with --linear tensorrt",
        ),
        ("PadfreeLinear", {"has_residual": 0}, [(7, 16), (16, 2)], "the weight has N = 2; allowed: multiples of 8"),
        (
            "PadfreeLinear",
            {"has_residual": 1},
            [(7, 16), (16, 8), (7, 16)],
            "input residual has shape [7,16]; allowed: [T,N] with N = 8 as in input weight",
        ),
        ("PadfreeLinear", {"gated": 1}, [(7, 16), (16, 24)], "the gated weight has N = 24; allowed: multiples of 16"),
        (
            "PadfreeLinear",
            {"rotary_features": 256},
            [(7, 16), (16, 32), (7,), (128,)],
            "rotary_features is 256 with N = 32; allowed: up to N",
        ),
        (
            "PadfreeLinear",
            {"has_residual": 0, "has_x_moments": 1},
            [(7, 4160), (4160, 8), (65, 7, 2)],
            "rows with moments have K = 4160; allowed: multiples of 64 up to 4096; rewrite the model again, or with",
        ),
        (
            "PadfreeLinearFp8",
            {"has_residual": 0},
            [(7, 24), (32, 24), (32,), (32,)],
            "the weight has K = 24; allowed: multiples of 16; keep this linear layer in fp16",
        ),
        (
            "PadfreeLinearFp8",
            {"has_residual": 0},
            [(7, 16), (32, 32), (32,), (32,)],
            "input weight has shape [32,32]; allowed: [N,K] with K = 16 as in input x",
        ),
        (
            "PadfreeLinearFp8",
            {"gated": 1},
            [(7, 16), (48, 16), (48,), (48,)],
            "the gated weight has N = 48; allowed: multiples of 32",
        ),
        (
            "PadfreeRotary",
            {},
            [(7, 15), (7,), (1, 4)],
            "num_heads = 2 and head_size = 8 take 16 columns; allowed: up to W = 15",
        ),
        ("PadfreeRotary", {}, [(7, 16), (7,), (2, 4)], "input frequencies has shape [2,4]; allowed: [1,4]"),
        ("PadfreeIndex", {}, [(65536, 65536)], "B*S is above 2147483647 at S = 65536"),
        ("PadfreeSchedule", {"has_extent": 1}, [(65536,), (7,), (65536,)], "B*S is above 2147483647"),
        (
            "PadfreeSchedule",
            {"has_extent": 0, "has_tasks": 1},
            [(2**30,), (7,)],
            "the task list may have 2147484162 entries at T = 7, B = 1073741824 and num_heads = 2",
        ),
        (
            "PadfreeAttention",
            {"qkv_layout": "3HD", "has_qkv_bias": 0, "has_tasks": 1},
            [(7, 48), (4,), (1, 4)],
            "input tasks has 1 entries; allowed: 520 for T = 7, B = 3 and num_heads = 2; take it from",
        ),
        (
            "PadfreeAttention",
            {"qkv_layout": "3HD", "has_qkv_bias": 0, "has_tasks": 0},
            [(7, 48), (2**30 + 1,)],
            "T = 7, B = 1073741824 and num_heads = 2 take 2147483650 blocks; allowed: up to 2147483647",
        ),
        (
            "PadfreeLinear",
            {"has_residual": 0},
            [(2**20, 16), (16, 2**20)],
            "x has T = 1048576; allowed: up to 1008 with N = 1048576; use smaller batches, or build with",
        ),
        ("PadfreeLinear", {"has_residual": 0}, [(2**31 - 1, 16), (16, 8)], "allowed: up to 2147482623 with N = 8"),
        (
            "PadfreeUnpack",
            {},
            [(7, 16), (6,), (3,), (3, 5)],
            "input token_index has shape [6]; allowed: [T] with T = 7",
        ),
        ("PadfreeUnpack", {}, [(7, 16), (7,), (3,), ()], "input extent has shape []; allowed: [...,S]"),
    ],
)
def test_bad_shape_is_refused(
    library: PluginLibrary,
    log: LogCapture,
    operator: str,
    changes: dict[str, AttributeValue],
    shapes: list[tuple[int, ...]],
    message: str,
) -> None:
    attributes = next(
        candidate for candidate in variants(operator) if all(candidate[name] == changes[name] for name in changes)
    )
    plugin = create(library, operator, attributes)
    assert not plugin.on_shape_change(shapes)
    text = log.text()
    assert f"padfree: {operator} 'node_1': " in text
    assert message in text
    builder = ExpressionBuilder(counted=0)
    assert builder.output_shapes(plugin, [[Size(size, constant=True) for size in shape] for shape in shapes]) is None
    assert message in log.text()
    plugin.destroy()


@pytest.mark.parametrize(
    ("wide_heads", "columns", "message"),
    [
        (0, 192, "rotary_features is 192 with norms_heads; allowed: multiples of 128; rewrite the model again"),
        (1, 384, "rotary_features is 384 with wide_heads; allowed: multiples of 256; rewrite the model again"),
    ],
)
def test_parts_of_heads_are_refused(
    library: PluginLibrary, log: LogCapture, wide_heads: int, columns: int, message: str
) -> None:
    attributes = next(item for item in variants("PadfreeLinear") if item["norms_heads"] and not item["has_bias"])
    plugin = create(library, "PadfreeLinear", {**attributes, "rotary_features": columns, "wide_heads": wide_heads})
    assert not plugin.on_shape_change([(7, 16), (16, 512), (7,), (columns // 2,), (columns,)])
    assert message in log.text()
    plugin.destroy()


def test_more_axes_than_tensorrt_has_are_refused(library: PluginLibrary, log: LogCapture) -> None:
    plugin = create(library, "PadfreeUnpack", {})
    shapes = [(7, *[1] * 7), (7,), (3,), (5,)]
    assert (
        ExpressionBuilder(counted=0).output_shapes(plugin, [[Size(size) for size in shape] for shape in shapes]) is None
    )
    assert "would have 9 axes; allowed: up to 8" in log.text()
    plugin.destroy()


def test_a_launch_that_fails_says_on_what_and_what_to_do(library: PluginLibrary, log: LogCapture) -> None:
    attributes = next(
        item for item in variants("PadfreeAttention") if item["qkv_layout"] == "3HD" and not item["has_qkv_bias"]
    )
    plugin = create(library, "PadfreeAttention", {**attributes, "bias": "none", "has_tasks": 0})
    misaligned_address = 716  # cudaErrorMisalignedAddress
    assert plugin.enqueue([FP16, INT32], [(7, 48), (4,)], [8, 16]) == misaligned_address
    text = log.text()
    assert "PadfreeAttention 'node_1': the launch on qkv [7,48] FP16, cu_seqlens [4] INT32 failed: " in text
    assert "let every tensor begin at a multiple of 16 bytes" in text
    plugin.destroy()
