"""The account of an encoder layer by counting."""

# SPDX-License-Identifier: Apache-2.0
import pytest
from padfree.builder.peers.batch import draw_lengths

from benchmarks.engine.layer_counts import BATCHES, Layer, layer_counts, product, report

MINILM = Layer(hidden=384, heads=12, inner=1536)


def test_a_product_is_counted() -> None:
    counts = product("down", 10, 4, 2, residual=True)
    assert counts.bytes_moved == 2 * (10 * 4 + 4 * 2 + 10 * 2 + 10 * 2)
    assert counts.operations == 2 * 10 * 4 * 2


def test_attention_is_counted_within_sequences() -> None:
    attention = layer_counts(MINILM, [3, 5])[1]
    assert attention.exponentials == 12 * (9 + 25)
    assert attention.operations == 4 * (9 + 25) * 384
    assert attention.bytes_moved == 2 * 4 * 8 * 384


def test_what_bounds_a_kernel_depends_on_the_batch() -> None:
    """One short sequence waits for its weights; long ones for their products or, in heads of 32, their exponentials."""
    for kernel in layer_counts(MINILM, [32]):
        assert kernel.bound_us == kernel.least_us["bytes"]
    qkv, attention, *_ = layer_counts(MINILM, [512] * 32)
    assert attention.bound_us == attention.least_us["exponentials"] == pytest.approx(27.2, abs=0.1)
    assert attention.least_us["products"] == pytest.approx(attention.bound_us / 2)
    assert qkv.bound_us == qkv.least_us["products"] == pytest.approx(15.3, abs=0.1)


def test_the_batches_have_the_tokens_they_say() -> None:
    assert [sum(draw_lengths(batch)) for batch in BATCHES] == pytest.approx([32, 128, 1403, 4802, 16384], rel=2e-3)
    lines = report(MINILM, BATCHES[0])
    assert [line.split()[0] for line in lines[1:]] == ["QKV", "attention", "out", "up", "down", "layer"]
