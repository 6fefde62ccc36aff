# SPDX-License-Identifier: Apache-2.0
"""Which input of an exported file is the padding mask, and which of its values keep a token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx import ModelProto
from padfree.onnx_tools import RewriteError, rewrite

from tests.support.exports import assert_right, inputs_of, load, metadata_of
from tests.support.rewritings import Rewritings

INTERFACES = ("packed", "padded")


def _mask(name: str, interface: str) -> object:
    return metadata_of(rewrite(load(name), interface=interface, verify=False))["mask"]


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", ["w_qwen3_pos_nomask_dy18", "types_no_table_ts17"])
def test_without_a_mask_every_slot_is_a_token(name: str, interface: str, rewritings: Rewritings) -> None:
    """Positions and types that index no table are not a mask."""
    result = rewritings.of_export(name, interface)
    metadata = metadata_of(result)
    assert metadata["mask"] is None
    inputs = {item.name for item in inputs_of(name)}
    assert inputs <= {item["name"] for item in metadata["inputs"] if item["role"] == "tokens"}


@pytest.mark.parametrize("interface", INTERFACES)
def test_positions_that_part_a_row_into_sequences_are_named(interface: str, rewritings: Rewritings) -> None:
    """Without a mask, transformers hides from a query all keys before the place where positions start again."""
    report = rewritings.of_export("w_qwen3_pos_nomask_dy18", interface).report
    reasons = [miss.reason for item in report.passes if item.name == "attention" for miss in item.missed]
    assert len(reasons) == 2
    assert all("running sums of 'position_ids' tell which keys a query sees" in reason for reason in reasons)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", ["w_qwen3_pos_ts17", "o_qwen2_model"])
def test_mask_joined_with_a_causal_one_is_proved(name: str, interface: str, rewritings: Rewritings) -> None:
    """Combined by And, or where causal mask + padding mask is 0."""
    result = rewritings.of_export(name, interface)
    assert metadata_of(result)["mask"] == {"input": "attention_mask", "kept": [1], "masked": [0], "plain": True}


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("name", ["ids_mask_types_ts17", "w_ids_mask_pos_ts17"])
def test_mask_computed_from_ids(name: str, interface: str, rewritings: Rewritings) -> None:
    result = rewritings.of_export(name, interface)
    metadata = metadata_of(result)
    roles = {item["name"]: item["role"] for item in metadata["inputs"]}
    assert roles["input_ids"] == "tokens"
    assert metadata["mask"]["masked"] == [0]
    assert metadata["coverage"]["excluded_ids"] == ({"input_ids": [0]} if interface == "packed" else {})


@pytest.mark.parametrize("interface", INTERFACES)
def test_mask_of_levels_is_token_data_too(interface: str, rewritings: Rewritings) -> None:
    name = "w_mask_levels_tok_ts17"
    result = rewritings.of_export(name, interface)
    roles = {item["name"]: item["role"] for item in metadata_of(result)["inputs"]}
    assert roles["attention_mask"] == "tokens"


@pytest.mark.parametrize("interface", INTERFACES)
def test_inverted_mask(interface: str, rewritings: Rewritings) -> None:
    name = "mask_inverted_ts17"
    result = rewritings.of_export(name, interface)
    assert metadata_of(result)["mask"] == {"input": "padding_mask", "kept": [0], "masked": [1], "plain": True}


@pytest.mark.parametrize("interface", INTERFACES)
def test_masked_keys_that_see_themselves_alone(interface: str, rewritings: Rewritings) -> None:
    """XLNet lets every token see itself, even a masked one, but no kept token sees that one."""
    result = rewritings.of_export("xlnet_ts17", interface)
    assert metadata_of(result)["mask"] == {"input": "attention_mask", "kept": [1], "masked": [0], "plain": True}


def _named_alike(name: str) -> ModelProto:
    """A case whose inputs all have the axes [batch, sequence]."""
    model = load(name)
    for value in model.graph.input:
        for axis, text in enumerate(("batch", "sequence")):
            value.type.tensor_type.shape.dim[axis].dim_param = text
    return model


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("d_bart_encdec", "between two sequences: tokens made of 'decoder_input_ids' read those made of 'input_ids'"),
        ("d_crossatt", "between two sequences: tokens made of 'q_ids' read those made of 'd_ids'"),
        ("d_masked_pos", "input 'masked_positions' holds positions in the sequence"),
        ("d_spans_dynamic", "input 'spans' holds positions in the sequence"),
    ],
)
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("named", [_named_alike, load], ids=["alike", "apart"])
def test_names_of_axes_prove_nothing(
    name: str, reason: str, named: Callable[[str], ModelProto], interface: str
) -> None:
    with pytest.raises(RewriteError, match=reason):
        rewrite(named(name), interface=interface)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    "names", [("a", "b", "c", "d", "e", "f"), ("", "", "", "", "", ""), ("x", "y", "x", "z", "x", "")]
)
def test_axes_may_have_any_names(names: tuple[str, ...], interface: str) -> None:
    """Exporters name the same axis differently for several inputs, or not at all."""
    model = load("xlnet_ts17")
    for value, pair in zip(model.graph.input, zip(names[::2], names[1::2], strict=True), strict=True):
        for dim, text in zip(value.type.tensor_type.shape.dim, pair, strict=True):
            dim.Clear()
            dim.dim_param = text
    assert_right(model, inputs_of("xlnet_ts17"), interface, verify=False)


@pytest.mark.parametrize("interface", INTERFACES)
def test_positions_choose_from_a_table_that_is_cut(interface: str) -> None:
    """Rows of a rotary table cut to the sequence's length are not tokens; naming the proved mask changes nothing."""
    name = "o_qwen2_model"
    assert_right(load(name), inputs_of(name), interface, mask="attention_mask")
