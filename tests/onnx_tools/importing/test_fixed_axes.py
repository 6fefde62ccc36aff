# SPDX-License-Identifier: Apache-2.0
"""Files with a fixed batch or sequence size: rewritten for every size, or refused with advice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from padfree.onnx_tools import RewriteError, load_model, rewrite
from padfree.onnx_tools.analysis.symbolic.poly import Poly
from padfree.onnx_tools.importing.fixed_axes.reshape import align

from tests.support.encoder import HIDDEN, EncoderBuilder
from tests.support.exports import metadata_of, session
from tests.support.families import Case, all_cases, feeds_for
from tests.support.rewritings import Rewritings

B, S = Poly.atom("B"), Poly.atom("S")
LENGTHS = (4, 1, 3, 4, 2)
TOLERANCE = 1e-4  # as a share of an output's root mean square, as for other exported files
STATIC = [case for case in all_cases() if case.static]
REFUSED = {"deberta_v2": "needs 2\\*B and 2 to be the same size"}
DISTANCES = {"t5", "modernbert"}  # families whose attention measures distances, between slots in the padded interface

interfaces = pytest.mark.parametrize("interface", ["packed", "padded"])


def sizes_of(model: ModelProto) -> tuple[int, int]:
    """Batch size and length that the file takes; 0 means any."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    return dims[0].dim_value, dims[1].dim_value


def run_original(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Runs each sequence in a batch of the file's own size, whatever else is in it, padded to the file's length."""
    batch, length = sizes_of(model)
    rows = []
    for row in range(len(LENGTHS)):
        own = {name: np.zeros((batch or 1, length or values.shape[1]), values.dtype) for name, values in feeds.items()}
        for name, values in feeds.items():
            own[name][:, : values.shape[1]] = values[row]
        rows.append([output[0] for output in session(model).run(None, own)])
    return [np.stack(parts) for parts in zip(*rows, strict=True)]


def test_every_form_is_there() -> None:
    forms = {(case.static, case.exporter) for case in STATIC if case.family == "bert"}
    assert forms == set(itertools.product(
        ["batch", "sequence", "both", "one", "batch_of_one", "square", "heads_and_width"], ["torchscript", "dynamo"]
    ))  # fmt: skip


@interfaces
@pytest.mark.parametrize("case", [case for case in STATIC if case.family not in REFUSED], ids=lambda case: case.name)
def test_same_answers_for_every_size(case: Case, interface: str, rewritings: Rewritings) -> None:
    original = load_model(case.path)
    result = rewritings.of_case(case, interface)
    metadata = metadata_of(result)
    assert result.report.packed_gemm_share == 1.0
    assert result.report.complete == (interface == "packed" or case.family not in DISTANCES), str(result.report)
    if sizes_of(original)[1]:
        assert metadata["max_positions"] <= sizes_of(original)[1]
    mask = np.arange(max(LENGTHS)) < np.asarray(LENGTHS)[:, None]
    feeds = feeds_for(original, mask, 3)
    wanted = run_original(original, feeds)
    if interface == "packed":
        inputs = {item["name"]: item["role"] for item in metadata["inputs"]}
        feeds = {name: feeds[name][mask].astype(np.int32) for name, role in inputs.items() if role == "tokens"}
        feeds["seq_lens"] = mask.sum(1).astype(np.int32)
        if "max_seqlen" in inputs:
            feeds["max_seqlen"] = np.zeros(max(LENGTHS), np.int32)
    for a, b in zip(wanted, session(result.model).run(None, feeds), strict=True):
        a, b = a[:, : mask.shape[1]][mask], b if interface == "packed" else b[mask]
        assert a.shape == b.shape
        assert np.abs(a - b).max() / np.sqrt((a**2).mean()) <= TOLERANCE


@pytest.mark.parametrize("case", [case for case in STATIC if case.family not in REFUSED], ids=lambda case: case.name)
def test_drop_in_interface_takes_what_the_file_took(case: Case) -> None:
    original = load_model(case.path)
    result = rewrite(original, interface="padded")  # verification runs it on batches of many sizes
    batch, length = (size or other for size, other in zip(sizes_of(original), (2, 5), strict=True))
    mask = np.arange(length) < np.asarray([length - 1, 2, length, 3])[:batch, None]
    feeds = feeds_for(original, mask, 3)
    for a, b in zip(session(original).run(None, feeds), session(result.model).run(None, feeds), strict=True):
        assert a.shape == b.shape
        assert np.abs(a - b)[mask].max() / np.sqrt((a**2).mean()) <= TOLERANCE


@pytest.mark.parametrize("case", [case for case in STATIC if case.family in REFUSED], ids=lambda case: case.name)
def test_what_is_not_certain_is_refused(case: Case) -> None:
    with pytest.raises(RewriteError, match=REFUSED[case.family] + r".*dynamic_axes=.*dynamic_shapes.*optimum-cli"):
        rewrite(case.path)


@pytest.mark.parametrize(
    ("shape", "target", "wanted"),
    [
        ((B, S, 16), (3, 7, 2, 8), (B, S, 2, 8)),
        ((B, S, 21), (3, 7, 3, 7), (B, S, 3, 7)),
        ((B, S, 16), (21, 16), (B * S, 16)),
        ((B * S, 16), (3, 7, 16), (B, S, 16)),
        ((B * 2, S, 7), (3, 2, 7, 7), (B, 2, S, 7)),
        ((B, 2, S, 7), (6, 7, 7), (B * 2, S, 7)),
        ((B, S), (3, 1, 1, 7), (B, 1, 1, S)),
        ((B, 7, S), (21, 7), (B * 7, S)),
        ((B, S, 16), (7, 3, 16), None),
        ((B, S, 16), (3, 14, 8), (B, S * 2, 8)),
        ((B, S * 7), (3, 7, 7), None),  # nothing tells whether S comes first or last
    ],
)
def test_axes_keep_their_order(
    shape: tuple[Poly | int, ...], target: tuple[int, ...], wanted: tuple[Poly | int, ...] | None
) -> None:
    def value(size: Poly) -> int:
        return size.evaluate({"B": 3, "S": 7}.__getitem__)

    actual = align(tuple(Poly.of(size) for size in shape), target, value)
    assert actual == (None if wanted is None else tuple(Poly.of(size) for size in wanted))


def test_a_batch_of_one_goes_to_the_first_axis_of_one() -> None:
    def value(size: Poly) -> int:
        return size.evaluate({"B": 1, "S": 7}.__getitem__)

    for shape, target, wanted in (
        ((B, S), (1, 1, 1, 7), (B, 1, 1, S)),
        ((B * S, Poly.of(4)), (1, 7, 4), (B, S, 4)),
        ((B * 2, S), (1, 2, 7), (B, 2, S)),
        ((B, S), (7,), (B * S,)),
    ):
        assert math.prod(target) == math.prod(value(size) for size in shape)
        assert align(shape, target, value) == tuple(Poly.of(size) for size in wanted)


BATCH, LENGTH = 3, 7


def with_fixed_axes(tail: Callable[[EncoderBuilder, str], str]) -> ModelProto:
    """An encoder of one layer and a tail, for the fixed size [3,7]."""
    builder = EncoderBuilder()
    hidden = builder.layer(builder.embedding(), builder.padding_mask())
    builder.op("Identity", tail(builder, hidden), output="y")
    model = builder.model({"y": ["batch", "sequence", HIDDEN]})
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, (BATCH, LENGTH), strict=True):
            dim.dim_value = size
    return model


def _by_sequence(b: EncoderBuilder, x: str) -> str:
    return b.op("Add", x, b.weight(BATCH, 1, HIDDEN))


def _mean(b: EncoderBuilder, x: str) -> str:
    return b.op("Sub", x, b.op("ReduceMean", x, axes=[1], keepdims=1))


def _middle(b: EncoderBuilder, x: str) -> str:
    part = b.op("Slice", x, b.axes(2), b.axes(5), b.axes(1))
    return b.op("Add", x, b.op("ReduceMax", part, axes=[1], keepdims=1))


def _halves(b: EncoderBuilder, x: str) -> str:
    first, second = b.op("Split", x, b.axes(4, 3), axis=1), f"second{len(b.nodes)}"
    b.nodes[-1].output.append(second)
    return b.op("Concat", second, first, axis=1)


def _mixer(b: EncoderBuilder, x: str) -> str:
    """Weights for every pair of positions."""
    return b.op("MatMul", b.weight(LENGTH, LENGTH), x)


def _transpose(b: EncoderBuilder, x: str) -> str:
    flat = b.op("Reshape", x, b.axes(LENGTH, BATCH, HIDDEN))
    return b.op("Reshape", flat, b.axes(BATCH, LENGTH, HIDDEN))


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (_by_sequence, "differs between the sequences of the batch"),
        (_mean, "averages over all positions, padding included"),
        (_middle, r"takes the positions 2 to 5 of \[S\]"),
        (_halves, "cuts the sequence or the batch into parts"),
        (_mixer, "has weights for every position of the sequence"),
        (_transpose, r"makes \[7, 3, 16\] of \[B, S, 16\]"),
    ],
)
def test_reasons(tail: Callable[[EncoderBuilder, str], str], words: str) -> None:
    with pytest.raises(RewriteError, match=r"fixed size \[3, 7\].*" + words + ".*export the model again"):
        rewrite(with_fixed_axes(tail), verify=False)


def _by_slot(b: EncoderBuilder, x: str) -> str:
    return b.op("Mul", b.op("Add", x, b.weight(1, LENGTH, HIDDEN)), b.weight(LENGTH, 1))


def _whole(b: EncoderBuilder, x: str) -> str:
    return b.op("Tanh", b.op("Slice", x, b.axes(0), b.axes(LENGTH), b.axes(1)))


@interfaces
@pytest.mark.parametrize("tail", [_by_slot, _whole])
def test_constants_by_slot_are_looked_up(tail: Callable[[EncoderBuilder, str], str], interface: str) -> None:
    assert rewrite(with_fixed_axes(tail), interface=interface).report.packed_gemm_share == 1.0


@interfaces
def test_a_pooled_width_like_the_length_is_not_cut(interface: str) -> None:
    """The outputs of a file for [16,16] are [B,16]: verification compares them unchanged."""
    builder = EncoderBuilder()
    hidden = builder.layer(builder.embedding(), builder.padding_mask())
    builder.op("Gather", hidden, builder.constant(0, np.int64), output="y", axis=1)
    model = builder.model({"y": ["batch", HIDDEN]})
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = HIDDEN
    assert rewrite(model, interface=interface).report.outputs == {"y": "per_sequence"}


def _amount_of_padding(b: EncoderBuilder, x: str) -> str:
    mask = b.op("Cast", b.op("Unsqueeze", "attention_mask", b.axes(2)), to=TensorProto.BOOL)
    filled = b.op("Where", mask, x, b.constant(3.0))
    return b.op("Add", x, b.op("ReduceSum", filled, b.axes(1), keepdims=1))


def test_what_depends_on_the_amount_of_padding_is_found() -> None:
    """With 7 slots the sum holds a 3 for each of the masked ones, which no other length can reproduce."""
    with pytest.raises(RewriteError, match=r"reads masked slots|the original gives"):
        rewrite(with_fixed_axes(_amount_of_padding))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (((2, 7), (3, 7)), r"different sizes of the batch \('input_ids' 2, 'attention_mask' 3\)"),
        (((3, 1), (3, 1)), r"fixed size \[3, 1\]; at least 1 sequence of 2 tokens is needed"),
    ],
)
def test_impossible_sizes(sizes: tuple[tuple[int, int], ...], words: str) -> None:
    model = with_fixed_axes(_whole)
    for value, wanted in zip(model.graph.input, sizes, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, wanted, strict=True):
            dim.dim_value = size
    with pytest.raises(RewriteError, match=words):
        rewrite(model)
