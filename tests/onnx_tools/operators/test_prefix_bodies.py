# SPDX-License-Identifier: Apache-2.0
"""Bodies of operators with sequences that continue another one, compared with numpy and with whole sequences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from padfree.onnx_tools import RewriteError
from padfree.onnx_tools.operators import OPERATORS, make_node

from tests.support import reference as ref
from tests.support.samples import PLAIN_ATTENTION

from .bodies import BATCHES, OPSETS, SIZE, TOLERANCE, batches, check, cu_of, poison, rng, run, with_batches

HEADS = 4


def some_prefixes(count: int) -> np.ndarray:
    """Numbers of other sequences, and numbers that mean none: -1, the sequence itself, and two out of range."""
    values = rng().integers(-1, max(count, 1), count)
    values[::5] = [[-1, -7, count, 2**31 - 1][at % 4] for at in range(len(values[::5]))]
    if count > 3:
        values[3] = 3
    return values.astype(np.int32)


@pytest.mark.parametrize(
    ("left", "kind", "ratio", "batch"), with_batches((-1, 0, 3, 100), ("none", "slope", "distance"), (1, 2))
)
def test_attention_continues_another_sequence(left: int, kind: str, ratio: int, batch: str) -> None:
    for opset, qkv_layout in itertools.product(OPSETS if batch == "ragged" else (17,), ("3HD", "separate")):
        cu, tokens = cu_of(batch)
        r = rng()
        widths = [HEADS * SIZE, HEADS // ratio * SIZE, HEADS // ratio * SIZE]
        q, k, v = (poison(r.standard_normal((tokens, width)).astype(np.float32), cu) for width in widths)
        bias = r.standard_normal(sum(widths)).astype(np.float32)
        feeds = {"q": q, "k": k, "v": v} if qkv_layout == "separate" else {"qkv": np.concatenate([q, k, v], 1)}
        prefix = some_prefixes(len(cu) - 1)
        feeds |= {"cu_seqlens": cu, "qkv_bias": bias, "prefix": prefix}
        inputs = {"slope": {"slopes": 2.0 ** -np.arange(HEADS, dtype=np.float32)}, "none": {}}.get(kind)
        if inputs is None:
            inputs = {"distance_bias": r.standard_normal((HEADS, 9)).astype(np.float32) * 3}
        attributes = {
            **PLAIN_ATTENTION, "scale": 0.9, "qkv_layout": qkv_layout, "has_qkv_bias": 1, "num_heads": HEADS,
            "num_kv_heads": HEADS // ratio, "head_size": SIZE, "bias": kind, "bias_range": 4, "window_left": left,
            "window_right": 0, "has_prefix": 1,
        }  # fmt: skip
        (y,) = run("PadfreeAttention", {**feeds, **inputs}, opset, **attributes)
        parts = np.split(bias, np.cumsum(widths)[:2])
        biased = [operand + part for operand, part in zip((q, k, v), parts, strict=True)]
        sides = {"window": (left, 0), "prefix": prefix}
        check(y, ref.attention(*biased, cu, num_heads=HEADS, head_size=SIZE, scale=0.9, **sides, **inputs))


def test_what_continues_is_what_a_whole_sequence_gives() -> None:
    """Two sequences with 6 tokens in common, whole, and as a parent with two members."""
    r = rng()
    first, rest = r.standard_normal((6, 3 * HEADS * SIZE)), r.standard_normal((7, 3 * HEADS * SIZE))
    whole = np.concatenate([first, rest[:3], first, rest[3:]]).astype(np.float32)
    shared = np.concatenate([rest[:3], first, rest[3:]]).astype(np.float32)
    attributes = {
        **PLAIN_ATTENTION, "scale": 0.9, "num_heads": HEADS, "num_kv_heads": HEADS, "head_size": SIZE, "bias": "slope",
        "window_right": 0,
    }  # fmt: skip
    feeds = {"slopes": 2.0 ** -np.arange(HEADS, dtype=np.float32)}
    cu = [np.array(lens, np.int32) for lens in ([0, 9, 19], [0, 3, 9, 13])]
    (expected,) = run("PadfreeAttention", {**feeds, "qkv": whole, "cu_seqlens": cu[0]}, 17, **attributes)
    prefix = np.array([1, -1, 1], np.int32)
    inputs = {**feeds, "qkv": shared, "cu_seqlens": cu[1], "prefix": prefix}
    (y,) = run("PadfreeAttention", inputs, 17, **{**attributes, "has_prefix": 1})
    np.testing.assert_allclose(y[:3], expected[6:9], **TOLERANCE)
    np.testing.assert_allclose(y[3:9], expected[:6], **TOLERANCE)
    np.testing.assert_allclose(y[9:], expected[15:], **TOLERANCE)


@batches
def test_a_single_number_means_that_no_sequence_continues(batch: str) -> None:
    lens, _ = BATCHES[batch]
    cu, tokens = cu_of(batch)
    flags = {"has_positions": 1, "has_prefix": 1, "has_extent": 0, "has_tasks": 0}
    for number in (-1, 0, 1, len(lens)):
        feeds = {"seq_lens": np.array(lens, np.int32), "tokens": np.zeros(tokens, np.int32)}
        feeds |= {"prefix": np.array([number], np.int32)}
        _, positions = run("PadfreeSchedule", feeds, 17, num_heads=1, **flags)
        np.testing.assert_array_equal(positions, ref.positions(cu, tokens))


@batches
def test_positions_continue(batch: str) -> None:
    lens, filler = BATCHES[batch]
    cu, tokens = cu_of(batch)
    prefix = some_prefixes(len(lens))
    feeds = {"seq_lens": np.array(lens, np.int32), "tokens": np.zeros(tokens, np.int32), "prefix": prefix}
    flags = {"has_positions": 1, "has_prefix": 1, "has_extent": 0, "has_tasks": 0}
    for opset in OPSETS:
        sums, positions = run("PadfreeSchedule", feeds, opset, num_heads=1, **flags)
        np.testing.assert_array_equal(sums, cu)
        np.testing.assert_array_equal(positions, ref.positions(cu, tokens, prefix))
    assert positions[tokens - filler :].tolist() == [0] * filler


def test_only_causal_attention_continues() -> None:
    for refused in ({"window_right": -1}, {"window_right": 2}, {"bias": "disentangled", "window_right": 0}):
        attributes = {**PLAIN_ATTENTION, "num_heads": 1, "num_kv_heads": 1, "head_size": 8, "scale": 1.0, **refused}
        with pytest.raises(RewriteError, match=r"window_right|disentangled"):
            make_node("PadfreeAttention", ["qkv", "cu", "prefix"], ["y"], **{**attributes, "has_prefix": 1})


def test_nodes_without_a_prefix_do_not_name_it() -> None:
    """So that files and plans from before mean what they did."""
    spec = OPERATORS["PadfreeAttention"]
    attributes = {name: value for name, value in PLAIN_ATTENTION.items() if name not in spec.outside_engines}
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_size": 8, "scale": 1.0}
    node = make_node("PadfreeAttention", ["qkv", "cu"], ["y"], **attributes, **sizes)
    assert "has_prefix" not in {attribute.name for attribute in node.attribute}
    assert "has_prefix" not in spec.engine_options
    assert "prefix" not in spec.variant({**PLAIN_ATTENTION, "has_prefix": 0})
    assert "has_prefix_1" in spec.variant({**PLAIN_ATTENTION, "has_prefix": 1})
