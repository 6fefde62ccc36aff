# SPDX-License-Identifier: Apache-2.0
"""Convolutions over tokens are packed where they see zeros in masked slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree, run
from tests.onnx_tools.passes.test_convolutions import SAME
from tests.support.encoder import HIDDEN, TOKENS, EncoderBuilder, with_output

NEAREST = [(taps, form) for taps, form in SAME if (taps, form.get("pads")) in ((3, [1, 1]), (2, [0, 1]), (2, [1, 0]))]
FURTHER = [item for item in SAME if item not in NEAREST and "auto_pad" not in item[1] and item[0] > 1]


def mask_rows(b: EncoderBuilder, x: str) -> str:
    mask = b.op("Cast", b.op("Unsqueeze", "attention_mask", b.axes(2)), to=TensorProto.FLOAT)
    return b.op("Mul", x, mask)


def convolution(b: EncoderBuilder, x: str, taps: int, **form: Any) -> str:
    transposed = b.op("Transpose", x, perm=[0, 2, 1])
    y = b.op("Conv", transposed, b.weight(HIDDEN, HIDDEN, taps), b.weight(HIDDEN), **form)
    return b.op("Transpose", y, perm=[0, 2, 1])


def encoder(taps: int, *, zeros: bool = True, **form: Any) -> ModelProto:
    """Embedding, a layer, and a convolution added to it, as at the beginning of DeBERTa v2."""
    b = EncoderBuilder()
    words = mask_rows(b, b.embedding()) if zeros else b.embedding()
    added = b.op("Add", b.layer(words, b.padding_mask()), b.op("Tanh", convolution(b, words, taps, **form)))
    return with_output(b.norm(added), b, TOKENS)


def operators(model: ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(("taps", "form"), NEAREST)
def test_nearest_neighbours(taps: int, form: dict[str, Any], interface: str) -> None:
    """Under all masks, including those with holes."""
    model = encoder(taps, **form)
    result = rewrite(model, interface=interface, strict=True)
    assert "Pad" not in operators(result.model)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("zeros", [False, True])
def test_one_tap_reads_no_neighbour(zeros: bool, interface: str) -> None:
    """Whatever the padded slots hold."""
    model = encoder(1, zeros=zeros)
    result = rewrite(model, interface=interface, strict=True)
    assert not {"Conv", "Pad"} & operators(result.model)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(("taps", "form"), FURTHER)
def test_further_neighbours(taps: int, form: dict[str, Any], interface: str) -> None:
    """In the padded interface masks must have no holes."""
    model = encoder(taps, **form)
    result = rewrite(model, interface=interface, strict=True, masks="contiguous" if interface == "padded" else "any")
    assert bool(result.report.contiguous_because) == (interface == "padded")
    for mask in ("prefix", "left", "full") if interface == "padded" else ("prefix",):
        assert_agree(model, result, only=mask)


@pytest.mark.parametrize("interface", INTERFACES)
def test_neighbours_by_channel_after_zeros(interface: str) -> None:
    """A causal convolution per channel; a Pad puts zeros ahead of the first row."""
    b = EncoderBuilder()
    words = mask_rows(b, b.embedding())
    longer = b.op("Pad", b.op("Transpose", words, perm=[0, 2, 1]), b.axes(0, 0, 1, 0, 0, 0))
    y = b.op("Conv", longer, b.weight(HIDDEN, 1, 2), b.weight(HIDDEN), group=HIDDEN)
    added = b.op("Add", b.layer(words, b.padding_mask()), b.op("Tanh", b.op("Transpose", y, perm=[0, 2, 1])))
    model = with_output(b.norm(added), b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert not {"Conv", "Pad"} & operators(result.model)
    assert_agree(model, result)


def test_further_neighbours_stay_where_masks_may_have_holes() -> None:
    model = encoder(3, pads=[2, 2], dilations=[2])
    result = rewrite(model, interface="padded")
    said = "counts slots between them, and not tokens; --masks contiguous packs it"
    assert any(said in reason for reason in reasons(result))
    assert "Pad" in operators(result.model)
    assert_agree(model, result)


def reasons(result: Any) -> list[str]:
    return [miss.reason for item in result.report.passes for miss in item.missed]


@pytest.mark.parametrize("interface", INTERFACES)
def test_neighbours_that_are_padding_are_refused(interface: str) -> None:
    with pytest.raises(RewriteError, match="depends on padding"):
        rewrite(encoder(3, zeros=False, pads=[1, 1]), interface=interface)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("interface", INTERFACES)
def test_causal_convolutions_with_results_that_are_cut(interface: str, zeros: bool) -> None:
    """As in LFM2: a gate, a convolution per channel with zeros on both sides, and as many results as there are rows.

    A token's neighbours come before it, so packed sequences need no zeros in masked slots: right padding is not read.
    """
    b = EncoderBuilder()
    words = mask_rows(b, b.embedding()) if zeros else b.embedding()
    gated = b.op("Mul", words, b.op("MatMul", words, b.weight(HIDDEN, HIDDEN)))
    y = b.op("Conv", b.op("Transpose", gated, perm=[0, 2, 1]), b.weight(HIDDEN, 1, 3), group=HIDDEN, pads=[2, 2])
    length = b.op("Shape", "input_ids", start=1)
    y = b.op("Transpose", b.op("Slice", y, b.axes(0), length, b.axes(2)), perm=[0, 2, 1])
    model = with_output(b.norm(b.op("Add", b.layer(words, b.padding_mask()), y)), b, TOKENS)
    if interface == "padded":
        result = rewrite(model, interface=interface, masks="contiguous", strict=zeros)
        assert_agree(model, result, only="prefix")
        return
    result = rewrite(model, interface=interface, strict=True)
    assert not {"Conv", "Pad"} & operators(result.model)
    assert result.report.right_padded_only != zeros
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_other_numbers_around_a_sequence_stay(interface: str) -> None:
    """Before the first slot comes 0.5, not the zeros that stand for missing neighbours."""
    b = EncoderBuilder()
    words = mask_rows(b, b.embedding())
    longer = b.op("Pad", words, b.axes(0, 1, 0, 0, 0, 0), b.constant(0.5))
    before = b.op("Slice", longer, b.axes(0), b.axes(-1), b.axes(1))
    joined = b.linear(b.op("Concat", before, words, axis=2), 2 * HIDDEN, HIDDEN)
    model = with_output(b.norm(b.op("Add", b.layer(words, b.padding_mask()), joined)), b, TOKENS)
    result = rewrite(model, interface=interface)
    assert "Pad" in operators(result.model)
    assert_agree(model, result)


@pytest.mark.parametrize("interface", INTERFACES)
def test_rows_ahead_written_out(interface: str) -> None:
    """A row and the one before it, as models without convolutions write it."""
    b = EncoderBuilder()
    words = mask_rows(b, b.embedding())
    before = b.op("Slice", b.op("Pad", words, b.axes(0, 1, 0, 0, 0, 0)), b.axes(0), b.axes(-1), b.axes(1))
    joined = b.linear(b.op("Concat", words, before, axis=-1), 2 * HIDDEN, HIDDEN)
    model = with_output(b.norm(b.op("Add", b.layer(words, b.padding_mask()), joined)), b, TOKENS)
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result)


def test_filler_and_empty_sequences() -> None:
    """In the packed batch, the neighbours at a sequence's ends are other sequences' tokens, or filler."""
    model = encoder(3, pads=[1, 1])
    result = rewrite(model, strict=True)
    rng = np.random.default_rng(5)
    ids, lengths = rng.integers(0, 20, 12), [0, 1, 5, 0, 2, 0]
    actual = run(result.model, {"input_ids": ids.astype(np.int32), "seq_lens": np.asarray(lengths, np.int32)})[0]
    starts = np.cumsum([0, *lengths])
    for start, length in zip(starts, lengths, strict=False):
        if length:
            alone = {"input_ids": ids[None, start : start + length], "attention_mask": np.ones((1, length), np.int64)}
            np.testing.assert_allclose(actual[start : start + length], run(model, alone)[0][0], atol=2e-5)


def test_the_mask_leaves_no_work_on_packed_tokens() -> None:
    """Whatever it multiplies or fills is the same at every token."""
    b = EncoderBuilder()
    gone = b.op("Equal", b.op("Unsqueeze", "attention_mask", b.axes(2)), b.constant(0, np.int64))
    filled = b.op("Where", gone, b.constant(0.0), b.layer(mask_rows(b, b.embedding()), b.padding_mask()))
    model = with_output(b.norm(filled), b, TOKENS)
    result = rewrite(model, strict=True)
    assert not {"Mul", "Where", "Equal"} & operators(result.model)
    assert_agree(model, result)
