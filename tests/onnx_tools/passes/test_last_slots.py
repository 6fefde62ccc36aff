# SPDX-License-Identifier: Apache-2.0
"""The last slot of every sequence is its last token where padding lies before tokens, as in embedding decoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from padfree.builder.compare.batches import LEFT, PREFIX
from padfree.builder.compare.comparison import CompareOptions, compare
from padfree.builder.compare.data import DataOptions
from padfree.onnx_tools import RewriteError, rewrite
from padfree.runtime import Session

from tests.onnx_tools.agreement import INTERFACES, masks, run
from tests.support.encoder import HIDDEN, VOCABULARY, EncoderBuilder, with_output

TOLERANCE = 2e-5  # float32, one layer
Form = Callable[[EncoderBuilder, str], str]


def by_index(b: EncoderBuilder, x: str) -> str:
    return b.op("Gather", x, b.constant(-1, np.int64), axis=1)


def by_length(b: EncoderBuilder, x: str) -> str:
    length = b.op("Gather", b.op("Shape", x), b.constant(1, np.int64))
    return b.op("Gather", x, b.op("Sub", length, b.constant(1, np.int64)), axis=1)


def by_slice(b: EncoderBuilder, x: str) -> str:
    """What transformers computes the logits of with logits_to_keep=1."""
    last = b.op("Slice", x, b.axes(-1), b.axes(2**63 - 1), b.axes(1), b.axes(1))
    return b.op("Squeeze", b.linear(last, HIDDEN, HIDDEN), b.axes(1))


def of_logits(b: EncoderBuilder, x: str) -> str:
    """Two of the vocabulary's scores at the last slot, as rerankers answer."""
    scores = by_index(b, b.linear(x, HIDDEN, VOCABULARY))
    return b.op("Softmax", b.op("Gather", scores, b.axes(9, 11), axis=1), axis=1)


FORMS = {"index": by_index, "length": by_length, "slice": by_slice, "logits": of_logits}
WIDTHS = {"logits": 2}


def decoder(form: str, *, with_positions: bool = False) -> ModelProto:
    """One layer with causal attention; without a table of positions, it is the same wherever a sequence begins."""
    builder = EncoderBuilder()
    words = builder.norm(builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids"))
    x = builder.embedding() if with_positions else words
    hidden = builder.layer(x, builder.op("Add", builder.padding_mask(), builder.causal_mask()))
    return with_output(FORMS[form](builder, hidden), builder, ["batch", WIDTHS.get(form, HIDDEN)])


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", FORMS)
def test_left_padded_sequences_get_what_the_original_gives(form: str, interface: str, tmp_path: Path) -> None:
    model = decoder(form)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreePool"]
    assert any("takes the last slot" in reason for reason in result.report.left_padded_because)
    assert not result.report.right_padded_only
    mask = masks("padded")["left"]
    ids = np.random.default_rng(7).integers(0, VOCABULARY, mask.shape)
    feeds = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
    expected = run(model, feeds)[0]
    if interface == "padded":
        actual = run(result.model, feeds)[0]
    else:
        onnx.save(result.model, tmp_path / "packed.onnx")
        with Session(tmp_path / "packed.onnx") as session:
            actual = np.stack(session.run([row[kept] for row, kept in zip(ids, mask, strict=True)])["y"])
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("verify", [True, False])
def test_positions_of_slots_are_refused_with_advice(verify: bool) -> None:
    """Padding before the tokens shifts them, so that neither way of padding gives sequences what they get alone."""
    with pytest.raises(RewriteError, match=r"take the last token by its index, hidden\[arange\(batch\)"):
        rewrite(decoder("index", with_positions=True), verify=verify)


def test_the_first_slot_beside_the_last_is_refused() -> None:
    """There is padding in one of them, wherever it lies."""
    builder = EncoderBuilder()
    words = builder.norm(builder.op("Gather", builder.weight(VOCABULARY, HIDDEN), "input_ids"))
    hidden = builder.layer(words, builder.padding_mask())
    first = builder.op("Gather", hidden, builder.constant(0, np.int64), axis=1)
    joined = builder.op("Concat", first, by_index(builder, hidden), axis=1)
    with pytest.raises(RewriteError, match="depends on padding"):
        rewrite(with_output(joined, builder, ["batch", 2 * HIDDEN]))


@pytest.mark.parametrize("interface", INTERFACES)
def test_comparisons_pad_the_original_as_it_expects(interface: str, tmp_path: Path) -> None:
    path = tmp_path / "reranker.onnx"
    onnx.save(decoder("logits"), path)
    report = compare(path, [], CompareOptions(interface=interface, data=DataOptions(max_seq_len=9)))
    assert report.passed
    assert {item.mask for item in report.batches} == {LEFT, PREFIX}  # batches without padding are both
    grids, mask = tmp_path / "grids.npz", np.array([[1, 1, 0], [1, 1, 1]])
    np.savez(grids, input_ids=mask * 7, attention_mask=mask)
    report = compare(path, [], CompareOptions(interface="packed", data=DataOptions(grids)))
    assert report.passed
    assert {item.mask for item in report.batches} == {LEFT}
