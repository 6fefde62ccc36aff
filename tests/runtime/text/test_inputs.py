# SPDX-License-Identifier: Apache-2.0
"""Which inputs of a model are filled from texts depends on the tables that they index, not on their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from padfree.contract.metadata import Metadata, parse_metadata
from padfree.onnx_tools import rewrite
from padfree.runtime import SessionError
from padfree.runtime.text.encoder import EncodedTexts
from padfree.runtime.text.inputs import TextInputs

from tests.support.encoder import HIDDEN, VOCABULARY, EncoderBuilder, with_output
from tests.support.exports import load, metadata_of
from tests.support.torch_folders import rename_input

SHAPE: list[Any] = ["batch", "sequence", HIDDEN]


def metadata(ids: str, types: str, positions: str, *, rows: int = 16, reverse: bool = False) -> Metadata:
    """The metadata of a model with three tables, whose inputs have these names, in this order or reversed."""
    b = EncoderBuilder()
    tables = ((VOCABULARY, "input_ids"), (2, "token_type_ids"), (rows, "position_ids"))
    word, kind, index = (b.op("Gather", b.weight(size, HIDDEN), name) for size, name in tables)
    x = b.norm(b.op("Add", b.op("Add", word, kind), index))
    model = with_output(b.layer(x, b.padding_mask()), b, SHAPE, "token_type_ids", "position_ids")
    names = {"input_ids": ids, "token_type_ids": types, "position_ids": positions}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    values = [type(value).FromString(value.SerializeToString()) for value in model.graph.input]
    for value in values:
        value.name = names.get(value.name, value.name)
    del model.graph.input[:]
    model.graph.input.extend(values[::-1] if reverse else values)
    return parse_metadata(metadata_of(rewrite(model, verify=False)), "model")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        ("input_ids", "token_type_ids", "position_ids"),
        ("input_word_ids", "input_type_ids", "input_pos"),
        ("a", "b", "pos"),
        ("tokens", "segment", "text_positions"),
        ("token_type_ids", "input_ids", "position"),
        ("in_1", "in_2", "in_3"),
        ("words", "kinds", "order"),
    ],
)
def test_tables_tell_ids_types_and_positions(names: tuple[str, str, str], reverse: bool) -> None:
    actual = metadata(*names, reverse=reverse)
    encoded = EncodedTexts.of_ids([[5, 6, 7], [8]])
    columns = TextInputs(actual, "model").token_columns(encoded)
    ids, types, positions = names
    assert columns[ids].tolist() == [5, 6, 7, 8]
    assert columns[types].tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(columns[positions], [0, 1, 2, 0])


def test_positions_that_begin_later_are_not_guessed() -> None:
    """RoBERTa's table has 512 rows and two more, and its first token is at position 2."""
    with pytest.raises(SessionError, match=r"'position_ids' has 514 rows, .* begin at 2"):
        TextInputs(metadata("input_ids", "token_type_ids", "position_ids", rows=514), "model")


def tagger_metadata(*, causal: bool = False) -> Metadata:
    """The metadata of a model that reads 9 kinds of tags as `pos_ids`, and counts positions itself or is causal."""
    b = EncoderBuilder()
    words = b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids") if causal else b.embedding()
    x = b.norm(b.op("Add", words, b.op("Gather", b.weight(9, HIDDEN), "pos_ids")))
    mask = b.op("Add", b.padding_mask(), b.causal_mask()) if causal else b.padding_mask()
    model = with_output(b.layer(x, mask), b, SHAPE, "pos_ids")
    return parse_metadata(metadata_of(rewrite(model, verify=False)), "model")


def test_parts_of_speech_are_not_taken_for_positions() -> None:
    with pytest.raises(SessionError, match="texts do not give the model's input 'pos_ids'"):
        TextInputs(tagger_metadata(), "model")


def test_where_the_graph_proves_nothing_names_tell() -> None:
    """A causal mask gives the order, too, so a decoder's `pos_ids` may be positions."""
    actual = tagger_metadata(causal=True)
    assert [item.holds for item in actual.token_inputs()] == [None, None]
    assert TextInputs(actual, "model").token_names == ("input_ids", "pos_ids")


@pytest.mark.parametrize("name", ["position_ids", "x_3"])
def test_numbers_that_become_angles_are_positions(name: str) -> None:
    model = load("w_qwen3_pos_ts17")
    rename_input(model, "position_ids", name)
    actual = parse_metadata(metadata_of(rewrite(model, verify=False)), "model").positions_input()
    assert actual is not None
    assert (actual.name, actual.holds) == (name, "positions")


@pytest.mark.parametrize("first", [np.cos, np.sin])
def test_rows_of_cosines_are_chosen_by_positions(first: Any) -> None:
    """The model has a table of cosines or sines, as well as a causal mask, which gives the order, too."""
    b = EncoderBuilder()
    angles = np.arange(24)[:, None] / 100 ** (np.arange(HIDDEN) / HIDDEN)
    rotated = b.op("Gather", b.constant(first(angles)), "x_2")
    x = b.norm(b.op("Mul", b.op("Gather", b.weight(VOCABULARY, HIDDEN), "input_ids"), rotated))
    model = with_output(b.layer(x, b.op("Add", b.padding_mask(), b.causal_mask())), b, SHAPE, "x_2")
    actual = parse_metadata(metadata_of(rewrite(model, verify=False)), "model").positions_input()
    assert actual is not None
    assert actual.name == "x_2"
