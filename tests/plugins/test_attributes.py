# SPDX-License-Identifier: Apache-2.0
"""Creators compared with the operators' description: fields, valid and refused attributes, serialisation, clones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from padfree.onnx_tools.operators import OPERATORS

from tests.support.samples import PLAIN_LINEAR, PLAIN_NORM, PLAIN_POOL, all_variants, fields_in_engine, variants

from .plugin_abi import FIELD_CHAR, FIELD_FLOAT32, FIELD_INT32, FP16, LogCapture, PluginLibrary

TABLE = (64, 0, 512, 0)  # of PadfreeLinear: pairs of a token count and the choice for up to that many
FIELD_TYPES = {"int": FIELD_INT32, "float": FIELD_FLOAT32, "string": FIELD_CHAR}


def test_creators_are_those_of_the_description(library: PluginLibrary) -> None:
    assert sorted(library.creators) == sorted(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_fields_are_those_of_the_description(library: PluginLibrary, operator: str) -> None:
    expected = {attribute.name: FIELD_TYPES[attribute.type] for attribute in OPERATORS[operator].attributes}
    assert library.field_types(operator) == expected


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_variant_serialises_and_clones(library: PluginLibrary, operator: str) -> None:
    identities = set()
    for variant in variants(operator):
        plugin = library.create(operator, variant)
        assert plugin is not None, variant
        attributes = fields_in_engine(operator, variant)
        assert plugin.identity() == (operator, "1", "")
        assert plugin.serialised_fields() == attributes
        copy = plugin.clone()
        identity = plugin.timing_cache_id()
        plugin.destroy()  # a clone is independent of its original
        again = library.create(operator, copy.serialised_fields())
        attached = copy.attach()
        assert again is not None
        for other in (copy, again, attached):
            assert other.serialised_fields() == attributes
            assert other.timing_cache_id() == identity
            assert other.output_count() == len(OPERATORS[operator].outputs_for(attributes))
            other.destroy()
        identities.add(identity)
    assert len(identities) == len(list(variants(operator)))


@pytest.mark.parametrize(
    ("operator", "changes", "message"),
    [
        ("PadfreePool", {"mode": "median"}, 'mode is "median"; allowed: first, last, mean, max, each'),
        ("PadfreePool", {"mode": ""}, "mode has 0 values; allowed: first, last, mean, max, each"),
        ("PadfreePool", {"mode": 1}, "mode has type INT32; allowed: CHAR"),
        ("PadfreePool", {"normalize": 2}, "normalize is 2; allowed: 0 to 1"),
        ("PadfreePool", {"normalize": None}, "normalize is missing; allowed: 0 to 1"),
        ("PadfreePool", {"axis": 1}, "axis is unknown; allowed: epsilon, mode, normalize, has_norm"),
        ("PadfreePool", {"has_norm": 0, "has_beta": 1}, "has_beta is 1 with has_norm 0"),
        (
            "PadfreePool",
            {"has_norm": 1, "mode": "max"},
            "has_norm is 1 with mode max; allowed: mode first, last,",
        ),
        ("PadfreeIndex", {"axis": 1}, "axis is unknown; allowed: none"),
        ("PadfreeAttention", {"head_size": 60}, "head_size is 60; allowed: 8 to 256, multiples of 8"),
        ("PadfreeAttention", {"head_size": 264}, "head_size is 264; allowed: 8 to 256, multiples of 8"),
        ("PadfreeAttention", {"num_heads": 0}, "num_heads is 0; allowed: 1 to "),
        ("PadfreeAttention", {"scale": float("nan")}, "scale is nan; allowed: finite"),
        ("PadfreeAttention", {"scale": 0.0}, "scale is 0; allowed: above 0; correct the node's attribute"),
        ("PadfreeAttention", {"scale": -0.125}, "scale is -0.125; allowed: above 0"),
        ("PadfreeAttention", {"qkv_layout": "HD3"}, 'qkv_layout is "HD3"; allowed: 3HD, H3D, separate'),
        ("PadfreeAttention", {"max_seq_len": -1}, "max_seq_len is -1; allowed: 0 to 2147483647"),
        ("PadfreeAttention", {"num_kv_heads": 0}, "num_kv_heads is 0; allowed: 1 to "),
        ("PadfreeAttention", {"num_heads": 6, "num_kv_heads": 4}, "num_kv_heads is 4; allowed: divisors of num_heads"),
        (
            "PadfreeAttention",
            {"num_heads": 6, "num_kv_heads": 3, "qkv_layout": "H3D"},
            'num_kv_heads is 3 with num_heads 6 and qkv_layout "H3D"; allowed: equal numbers, or another qkv_layout',
        ),
        ("PadfreeAttention", {"window_left": -2}, "window_left is -2; allowed: -1 to 2147483647"),
        ("PadfreeAttention", {"window_right": -2}, "window_right is -2; allowed: -1 to 2147483647"),
        ("PadfreeAttention", {"bias": "alibi"}, 'bias is "alibi"; allowed: none, slope, distance, disentangled'),
        ("PadfreeAttention", {"bias_range": -1}, "bias_range is -1; allowed: 0 to 65536"),
        (
            "PadfreeAttention",
            {"bias": "none", "has_k_position": 1},
            "has_k_position is 1 with bias none; allowed",
        ),
        (
            "PadfreeAttention",
            {"bias": "disentangled", "window_left": -1, "num_heads": 6, "num_kv_heads": 3, "qkv_layout": "3HD"},
            'num_kv_heads is 3 with num_heads 6 and bias "disentangled"; allowed: equal numbers',
        ),
        (
            "PadfreeAttention",
            {"bias": "disentangled", "window_left": -1, "head_size": 136},
            'head_size is 136 with bias "disentangled"; allowed: up to 128',
        ),
        (
            "PadfreeAttention",
            {"bias": "disentangled", "window_left": 64},
            "bias is disentangled with window_left 64; allowed: window_left -1",
        ),
        ("PadfreeAttention", {"quantized": 1, "y_scale": 0.0}, "y_scale is 0; allowed: from 6.10352e-05 to 16384"),
        ("PadfreeLayerNorm", {"epsilon": -1e-5}, "epsilon is -1e-05; allowed: finite, at least 0"),
        ("PadfreeLayerNorm", {"epsilon": float("inf")}, "epsilon is inf; allowed: finite, at least 0"),
        ("PadfreeLayerNorm", {"epsilon": 0}, "epsilon has type INT32; allowed: FLOAT32"),
        ("PadfreeLayerNorm", {"results": "fp8"}, 'results is "fp8"; allowed: act, e4m3, both, fp32, act_fp32'),
        ("PadfreeLayerNorm", {"results": "e4m3", "y_scale": 0.0}, "y_scale is 0; allowed: from 6.10352e-05 to 16384"),
        (
            "PadfreeLayerNorm",
            {"has_first": 1, "results": "act"},
            "has_first is 1 with results act; allowed: results fp32",
        ),
        (
            "PadfreeLayerNorm",
            {"has_first": 0, "has_pooler": 1},
            "has_pooler is 1 with has_first 0; allowed: has_first",
        ),
        (
            "PadfreeLayerNorm",
            {"has_first": 1, "has_pooler": 1, "results": "fp32", "has_residual": 1},
            "has_pooler is 1 with has_residual 1; allowed: has_residual 0",
        ),
        ("PadfreeEmbedding", {"results": "both", "y_scale": 32768.0}, "y_scale is 32768; allowed: from 6.10352e-05"),
        ("PadfreeEmbedding", {"results": None}, "results is missing; allowed: act, e4m3, both"),
        ("PadfreeEmbedding", {"position_offset": -1}, "position_offset is -1; allowed: 0 to 2147483647"),
        (
            "PadfreeEmbedding",
            {"has_positions": 1, "has_position_table": 0},
            "has_positions is 1 with has_position_table 0",
        ),
        (
            "PadfreeLinear",
            {"activation": "tanh"},
            'activation is "tanh"; allowed: none, gelu, gelu_tanh, relu, silu, sigmoid',
        ),
        ("PadfreeLinear", {"tile": 1}, "tile is unknown; allowed: activation, has_bias, has_residual"),
        ("PadfreeLinear", {"choices": (64, -1)}, "the engine chooses -1 for 64 tokens"),
        ("PadfreeLinear", {"choices": (64, 0, 64, 0)}, "the engine chooses 0 for 64 tokens"),
        ("PadfreeLinear", {"choices": (64, 0, 128)}, "the engine holds 3 numbers for its choices; allowed: pairs"),
        (
            "PadfreeLinear",
            {"has_residual": 0, "has_residual_moments": 1},
            "has_residual_moments is 1 with has_residual 0",
        ),
        (
            "PadfreeLinear",
            {"has_residual": 1, "has_x_moments": 1, "has_residual_moments": 1},
            "has_residual_moments is 1 with has_x_moments 1; allowed: has_x_moments 0",
        ),
        (
            "PadfreeLinear",
            {"activation": "gelu", "has_moments": 1},
            "has_moments is 1 with activation gelu; allowed: activation none",
        ),
        ("PadfreeLinear", {"rotary_features": 8}, "rotary_features is 8; allowed: 0 to 2147483647, multiples of 16"),
        (
            "PadfreeLinear",
            {"gated": 1, "rotary_features": 16},
            "rotary_features is 16 with gated 1; allowed: gated 0",
        ),
        (
            "PadfreeLinear",
            {"has_moments": 1, "rotary_features": 16},
            "rotary_features is 16 with has_moments 1; allowed: has_moments 0",
        ),
        (
            "PadfreeLinear",
            {"wide_heads": 1, "norms_heads": 0},
            "wide_heads is 1 with norms_heads 0; allowed: norms_heads 1",
        ),
        ("PadfreeLinear", {"wide_heads": 2}, "wide_heads is 2; allowed: 0 to 1"),
        ("PadfreeRotary", {"head_size": 7}, "head_size is 7; allowed: 2 to 2147483647, multiples of 2"),
        ("PadfreeRotary", {"pairing": "quarter"}, 'pairing is "quarter"; allowed: half, interleaved'),
        ("PadfreeLinear", {"x_epsilon": -1e-5}, "x_epsilon is -1e-05; allowed: finite, at least 0"),
        ("PadfreeSchedule", {"has_extent": -1}, "has_extent is -1; allowed: 0 to 1"),
        ("PadfreeSchedule", {"num_heads": 4097}, "num_heads is 4097; allowed: 1 to 4096"),
    ],
)
def test_bad_attribute_is_refused(
    library: PluginLibrary, log: LogCapture, operator: str, changes: dict[str, Any], message: str
) -> None:
    attributes = {**next(variants(operator)), **changes}
    assert library.create(operator, {name: value for name, value in attributes.items() if value is not None}) is None
    text = log.text()
    assert f"padfree: {operator} 'node_1': " in text
    assert message in text


def test_what_was_measured_is_serialised_and_is_no_attribute(library: PluginLibrary) -> None:
    attributes = fields_in_engine("PadfreeLinear", next(variants("PadfreeLinear")))
    plain, measured = (library.create("PadfreeLinear", item) for item in (attributes, {**attributes, "choices": TABLE}))
    assert plain is not None
    assert measured is not None
    copy = measured.clone()
    assert measured.serialised_fields() == copy.serialised_fields() == {**attributes, "choices": TABLE}
    assert measured.timing_cache_id() == plain.timing_cache_id()
    for plugin in (plain, measured, copy):
        plugin.destroy()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU to measure on")
def test_linear_needs_a_gpu_to_be_built(library: PluginLibrary, log: LogCapture) -> None:
    plugin = library.create("PadfreeLinear", PLAIN_LINEAR)
    assert plugin is not None
    assert not plugin.configure([FP16, FP16], [(7, 16), (16, 8)])
    assert "PadfreeLinear 'node_1': there is no GPU to measure on" in log.text()
    plugin.destroy()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU to ask for its architecture")
@pytest.mark.parametrize("results", ["act", "e4m3", "both", "fp32", "act_fp32"])
def test_rows_in_e4m3_need_a_gpu_to_be_built(library: PluginLibrary, log: LogCapture, results: str) -> None:
    plugin = library.create("PadfreeLayerNorm", {**PLAIN_NORM, "results": results})
    assert plugin is not None
    assert plugin.configure([FP16, FP16], [(7, 16), (16,)]) == (results not in ("e4m3", "both"))
    assert ("the GPU cannot be asked for its architecture" in log.text()) == (results in ("e4m3", "both"))
    plugin.destroy()


def test_attribute_given_twice_is_refused(library: PluginLibrary, log: LogCapture) -> None:
    assert library.create("PadfreePool", [*PLAIN_POOL.items(), ("mode", "max")]) is None
    assert "attribute mode is given twice" in log.text()


def test_string_with_its_final_zero_is_taken(library: PluginLibrary) -> None:
    plugin = library.create("PadfreePool", {**PLAIN_POOL, "mode": "mean\0"})
    assert plugin is not None
    assert plugin.serialised_fields()["mode"] == "mean"
    plugin.destroy()


def test_samples_cover_every_operator() -> None:
    assert {operator for operator, _ in all_variants()} == set(OPERATORS)
