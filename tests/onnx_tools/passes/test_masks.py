# SPDX-License-Identifier: Apache-2.0
"""Masks of many forms in encoders written node by node, compared with the original run on each sequence alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto
from padfree.onnx_tools import RewriteError, RewriteResult, rewrite

from tests.support.encoder import HEADS, HIDDEN, VOCABULARY
from tests.support.exports import Input, assert_right, metadata_of
from tests.support.mask_models import BOOL, FLOAT, INT64, Builder, unproved_mask

INTERFACES = ("packed", "padded")
IDS = Input("input_ids", "ids", high=VOCABULARY)
MASK = Input("attention_mask", "mask")

Kept = Callable[[Builder], str]

MASKS: dict[str, tuple[Kept, int, str]] = {
    "cast": (lambda b: b.op("Cast", "attention_mask", to=BOOL), INT64, "mask"),
    "equal to 1": (lambda b: b.op("Equal", "attention_mask", b.number(1)), INT64, "mask"),
    "above 0": (lambda b: b.op("Greater", "attention_mask", b.number(0)), INT64, "mask"),
    "not below 1": (lambda b: b.op("Not", b.op("Less", "attention_mask", b.number(1))), INT64, "mask"),
    "above one half": (
        lambda b: b.op("Greater", b.op("Cast", "attention_mask", to=FLOAT), b.constant(0.5)),
        INT64,
        "mask",
    ),
    "bool": (lambda _: "attention_mask", BOOL, "mask"),
    "inverted bool": (lambda b: b.op("Not", "attention_mask"), BOOL, "inverted"),
    "inverted, equal to 0": (lambda b: b.op("Equal", "attention_mask", b.number(0)), INT64, "inverted"),
    "float": (lambda b: b.op("Cast", "attention_mask", to=BOOL), FLOAT, "mask"),
    "float above one half": (lambda b: b.op("Greater", "attention_mask", b.constant(0.5)), FLOAT, "mask"),
    "inverted float": (lambda b: b.op("Equal", "attention_mask", b.constant(0.0)), FLOAT, "inverted"),
    "inverted, 1 - mask": (
        lambda b: b.op("Cast", b.op("Sub", b.number(1), "attention_mask"), to=BOOL),
        INT64,
        "inverted",
    ),
}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", MASKS)
def test_forms_of_a_mask(form: str, interface: str) -> None:
    kept, dtype, kind = MASKS[form]
    builder = Builder()
    x = builder.embedding()
    model = builder.finish(
        builder.layer(x, builder.add_mask(kept(builder))), {"input_ids": INT64, "attention_mask": dtype}
    )
    result = _without_positions(model, interface, Input("attention_mask", kind))
    assert result.report.plugins["PadfreeAttention"] == 1


def _without_positions(model: ModelProto, interface: str, *others: Input) -> RewriteResult:
    """For right-padded batches only: slots are positions, which left padding would move."""
    return assert_right(model, [IDS, *others], interface)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("what", ["causal", "bias", "look-up", "places"])
def test_mask_that_is_added_together_with_something_else(what: str, interface: str) -> None:
    """The mask is proved whether the attention is understood or stays padded: positions alone mean nothing."""
    builder = Builder()
    x = builder.embedding()
    other = {
        "causal": builder.causal_mask,
        "bias": lambda: _distance_bias(builder),
        "look-up": lambda: _position_look_up(builder),
        "places": lambda: _scaled_sums_of_positions(builder),
    }[what]()
    mask = builder.op("Add", builder.padding_mask(), other)
    model = builder.finish(builder.layer(x, mask), {"input_ids": INT64, "attention_mask": INT64})
    result = assert_right(model, [IDS, MASK], interface)
    assert metadata_of(result)["mask"] == {"input": "attention_mask", "kept": [1], "masked": [0], "plain": True}
    understood = what == "causal" or (interface == "packed" and what != "places")
    assert result.report.plugins.get("PadfreeAttention", 0) == understood


def _scaled_sums_of_positions(builder: Builder) -> str:
    """(i + j) / 8: not a function of the distance."""
    return builder.op("Mul", builder.op("Cast", builder.op("Add", *_steps(builder)), to=FLOAT), builder.constant(0.125))


def _steps(builder: Builder) -> tuple[str, str]:
    length = builder.op("Squeeze", builder.op("Shape", "input_ids", start=1))
    steps = builder.op("Range", builder.number(0), length, builder.number(1))
    return builder.op("Unsqueeze", steps, builder.axes(0)), builder.op("Unsqueeze", steps, builder.axes(1))


def _distance_bias(builder: Builder) -> str:
    """-|i - j| / 4."""
    distance = builder.op("Abs", builder.op("Sub", *_steps(builder)))
    return builder.op("Mul", builder.op("Cast", distance, to=FLOAT), builder.constant(-0.25))


def _position_look_up(builder: Builder) -> str:
    """A number per head and distance, as in T5, [H,S,S]."""
    distance = builder.op("Abs", builder.op("Sub", *_steps(builder)))
    rows = builder.op("Min", distance, builder.number(7))
    return builder.op("Transpose", builder.op("Gather", builder.weight(8, HEADS), rows), perm=[2, 0, 1])


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("padding", [(1,), (0, 5), tuple(range(3, VOCABULARY))])
def test_mask_from_ids(padding: tuple[int, ...], interface: str) -> None:
    """Kept are all ids except some, or only some; an island reads the ids, too."""
    builder = Builder()
    x = builder.embedding()
    masked = [builder.op("Equal", "input_ids", builder.number(value)) for value in padding]
    while len(masked) > 1:
        masked.append(builder.op("Or", masked.pop(0), masked.pop(0)))
    hidden = builder.layer(x, builder.add_mask(builder.op("Not", masked[0])))
    running = builder.op("CumSum", builder.op("Cast", "input_ids", to=FLOAT), builder.constant(1, np.int64))
    scaled = builder.op("Mul", builder.op("Unsqueeze", running, builder.axes(2)), builder.constant(0.01))
    model = builder.finish(builder.op("Add", hidden, scaled), {"input_ids": INT64})
    ids = Input("input_ids", "ids", high=VOCABULARY, excl=padding)
    result = assert_right(model, [ids], interface)
    metadata = metadata_of(result)
    assert metadata["mask"]["masked"] == list(padding)
    assert [item["role"] for item in metadata["inputs"]][:1] == ["tokens"]
    assert metadata["coverage"]["excluded_ids"] == ({"input_ids": list(padding)} if interface == "packed" else {})


@pytest.mark.parametrize("interface", INTERFACES)
def test_mask_that_chooses_rows_of_a_table(interface: str) -> None:
    builder = Builder()
    x = builder.op("Add", builder.embedding(), builder.op("Gather", builder.weight(3, HIDDEN), "attention_mask"))
    mask = builder.add_mask(builder.op("Cast", "attention_mask", to=BOOL))
    model = builder.finish(builder.layer(x, mask), {"input_ids": INT64, "attention_mask": INT64})
    result = assert_right(model, [IDS, Input("attention_mask", "seg")], interface)
    assert {item["name"]: item["limit"] for item in metadata_of(result)["inputs"]}["attention_mask"] == 3


@pytest.mark.parametrize("interface", INTERFACES)
def test_mask_that_is_a_number_too_stays_one_of_two_values(interface: str) -> None:
    """x * mask, as in encoders whose output has no padding, needs no mask per token."""
    builder = Builder()
    hidden = builder.layer(builder.embedding(), builder.add_mask(builder.op("Cast", "attention_mask", to=BOOL)))
    weight = builder.op("Unsqueeze", builder.op("Cast", "attention_mask", to=FLOAT), builder.axes(2))
    model = builder.finish(builder.op("Mul", hidden, weight), {"input_ids": INT64, "attention_mask": INT64})
    result = assert_right(model, [IDS, MASK], interface)
    tokens = [item["name"] for item in metadata_of(result)["inputs"] if item["role"] == "tokens"]
    assert tokens == ["input_ids"]


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("interface", INTERFACES)
def test_float_mask_on_an_island(interface: str, inverted: bool) -> None:
    """Causal and padding mask in one, from a mask of floats that an island reads, too."""
    builder = Builder()
    x = builder.embedding()
    masked = "attention_mask" if inverted else builder.op("Sub", builder.constant(1.0), "attention_mask")
    mask = builder.op("Mul", builder.key(masked), builder.constant(-1e9))
    hidden = builder.layer(x, builder.op("Add", mask, builder.causal_mask()))
    model = builder.finish(hidden, {"input_ids": INT64, "attention_mask": FLOAT})
    assert_right(model, [IDS, Input("attention_mask", "inverted" if inverted else "mask")], interface)


def test_floats_of_tokens_are_refused() -> None:
    builder = Builder()
    x = builder.op("Add", builder.embedding(), builder.op("Unsqueeze", "weights", builder.axes(2)))
    hidden = builder.layer(x, builder.padding_mask())
    model = builder.finish(hidden, {"input_ids": INT64, "attention_mask": INT64, "weights": FLOAT})
    with pytest.raises(
        RewriteError, match=r"input 'weights' is float32 \[batch, sequence\], and not what masks padding"
    ):
        rewrite(model)


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("interface", INTERFACES)
def test_mean_over_what_the_mask_keeps(interface: str, inverted: bool) -> None:
    builder = Builder()
    x = builder.embedding()
    weight = builder.op("Cast", "attention_mask", to=FLOAT)
    if inverted:
        weight = builder.op("Sub", builder.constant(1.0), weight)
    mask = builder.add_mask(builder.op("Cast", weight, to=BOOL))
    hidden, wide = builder.layer(x, mask), builder.op("Unsqueeze", weight, builder.axes(2))
    total = builder.op("ReduceSum", builder.op("Mul", hidden, wide), builder.axes(1), keepdims=0)
    count = builder.op("Clip", builder.op("ReduceSum", wide, builder.axes(1), keepdims=0), builder.constant(1e-9))
    model = builder.finish(builder.op("Div", total, count), {"input_ids": INT64, "attention_mask": INT64}, 2)
    result = assert_right(model, [IDS, Input("attention_mask", "inverted" if inverted else "mask")], interface)
    assert result.report.plugins["PadfreePool"] == 1


@pytest.mark.parametrize("interface", INTERFACES)
def test_without_any_mask(interface: str) -> None:
    """Packed, every sequence sees only itself; padded, every slot is a token."""
    builder = Builder()
    model = builder.finish(builder.layer(builder.embedding(), None), {"input_ids": INT64})
    result = assert_right(model, [IDS], interface, lengths=(5, 1, 7) if interface == "packed" else (6, 6))
    assert metadata_of(result)["mask"] is None
    assert result.report.plugins["PadfreeAttention"] == 1


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("what", ["ReduceMean", "ReduceMax", "last"])
@pytest.mark.parametrize("interface", INTERFACES)
def test_pooling_without_any_mask(what: str, keepdims: int, interface: str) -> None:
    builder = Builder()
    hidden = builder.layer(builder.embedding(), None)
    if what == "last":
        index = builder.constant([-1] if keepdims else -1, np.int64)
        pooled = builder.op("Gather", hidden, index, axis=1)
    else:
        pooled = builder.op(what, hidden, axes=[1], keepdims=keepdims)
    model = builder.finish(pooled, {"input_ids": INT64}, 2 + keepdims)
    result = assert_right(model, [IDS], interface, lengths=(5, 1, 7) if interface == "packed" else (6, 6))
    # For last tokens only, the last layer pools two more tensors: attention's result and the residual.
    assert result.report.plugins["PadfreePool"] == (3 if what == "last" else 1)


@pytest.mark.parametrize("interface", INTERFACES)
def test_multiplying_by_an_input_proves_no_mask(interface: str) -> None:
    """Attention sees all slots; the input that its result is multiplied by is one of the inputs per token."""
    builder = Builder()
    hidden = builder.layer(builder.embedding(), None)
    weight = builder.op("Unsqueeze", builder.op("Cast", "attention_mask", to=FLOAT), builder.axes(2))
    model = builder.finish(builder.op("Mul", hidden, weight), {"input_ids": INT64, "attention_mask": INT64})
    result = assert_right(
        model, [IDS, Input("attention_mask", "seg")], interface, lengths=(5, 7) if interface == "packed" else (6, 6)
    )
    assert metadata_of(result)["mask"] is None


def test_two_masks_are_refused_and_one_may_be_named() -> None:
    builder = Builder()
    hidden = builder.layer(builder.embedding(), builder.padding_mask())
    other = builder.layer(hidden, builder.add_mask(builder.op("Cast", "second_mask", to=BOOL)))
    model = builder.finish(other, {"input_ids": INT64, "attention_mask": INT64, "second_mask": INT64})
    with pytest.raises(RewriteError, match=r"several inputs.*--mask attention_mask or --mask second_mask"):
        rewrite(model)


@pytest.mark.parametrize("interface", INTERFACES)
def test_mask_without_a_proof_can_be_named(interface: str) -> None:
    model = unproved_mask()
    with pytest.raises(RewriteError, match=r"no attention proves.*the scores read 'attention_mask'; name the mask"):
        rewrite(model, interface=interface)
    result = assert_right(model, [IDS, MASK], interface, mask="attention_mask")
    assert metadata_of(result)["mask"]["input"] == "attention_mask"


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_mask_that_would_not_help_is_not_advised(interface: str) -> None:
    """The rows of the next slots are added, so that the mask is not the only obstacle."""
    with pytest.raises(RewriteError, match=r"^with --mask attention_mask: .*reads masked slots") as error:
        rewrite(unproved_mask(mixed=True), interface=interface)
    assert "name the mask" not in str(error.value)


def test_named_masks_are_checked() -> None:
    model = unproved_mask()
    with pytest.raises(RewriteError, match=r"the mask 'padding' is no input of the model; its inputs are"):
        rewrite(model, mask="padding")
    with pytest.raises(RewriteError, match="reads masked slots"):
        rewrite(model, mask="input_ids")
    builder = Builder()
    proved = builder.finish(
        builder.layer(builder.embedding(), builder.padding_mask()), {"input_ids": INT64, "attention_mask": INT64}
    )
    with pytest.raises(RewriteError, match="attention is masked by 'attention_mask', not by 'input_ids'"):
        rewrite(proved, mask="input_ids")
    assert metadata_of(rewrite(proved, mask="attention_mask"))["mask"]["input"] == "attention_mask"


@pytest.mark.parametrize("least", [0, 1])
def test_a_mask_that_keeps_every_key_is_none(least: int) -> None:
    """As exporters write it for a model without a mask: position >= 0 for every query and key."""
    b = Builder()
    x = b.embedding()
    sizes = b.op("Shape", "input_ids")
    batch, length = b.op("Slice", sizes, b.axes(0), b.axes(1)), b.op("Slice", sizes, b.axes(1), b.axes(2))
    steps = b.op("Range", b.number(0), b.op("Squeeze", length), b.number(1))
    kept = b.op("GreaterOrEqual", b.op("Unsqueeze", steps, b.axes(0, 1, 3)), b.number(least))
    kept = b.op("Expand", kept, b.op("Concat", batch, b.axes(1), length, length, axis=0))
    hidden = b.layer(x, b.op("Where", kept, b.constant(0.0), b.constant(-1e30)))
    b.op("Identity", hidden, output="y")
    model = b.model({"y": ["batch", "sequence", HIDDEN]})
    del model.graph.input[1]
    if least:  # the first row sees nothing
        with pytest.raises(RewriteError, match="reads masked slots"):
            rewrite(model)
        return
    result = assert_right(model, [IDS], "packed")
    assert result.report.complete
    assert metadata_of(result)["mask"] is None
    assert rewrite(model, interface="padded").report.complete


def test_numbers_of_the_mask_alone_may_not_follow_the_longest_sequence() -> None:
    """The share of slots that are tokens: no packed batch has such a number."""
    b = Builder()
    mask = b.op("Unsqueeze", b.op("Cast", "attention_mask", to=FLOAT), b.axes(2))
    share = b.op("ReduceMean", mask, axes=[1], keepdims=1)
    b.op("Add", b.layer(b.embedding(), b.padding_mask()), share, output="y")
    model = b.model({"y": ["batch", "sequence", HIDDEN]})
    with pytest.raises(RewriteError, match="reads masked slots: its result depends on padding"):
        rewrite(model, verify=False)
    assert rewrite(model, interface="padded").report.plugins["PadfreeAttention"] == 1
