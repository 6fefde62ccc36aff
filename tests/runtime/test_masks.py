# SPDX-License-Identifier: Apache-2.0
"""Sessions fill padding with the values that the model's mask recognises, and know models without a mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.runtime import Session, SessionError
from padfree.runtime.plan_files import parse_metadata

from tests.support.exports import inputs_of, load, save_rewritten, sequences, truth

LENGTHS = (5, 2, 7)


def _session(name: str, interface: str, folder: Path) -> Session:
    return Session(save_rewritten(name, folder, interface))


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("name", ["ids_mask_types_ts17", "mask_inverted_ts17", "w_mask_levels_tok_ts17"])
def test_padding_is_what_the_mask_takes_for_it(name: str, interface: str, tmp_path: Path) -> None:
    inputs = [item for item in inputs_of(name) if item.name != "padding_mask"]
    requests = sequences(inputs, LENGTHS)
    alone = [
        {**item, **({"padding_mask": np.zeros(len(item["input_ids"]))} if "inverted" in name else {})}
        for item in requests
    ]
    wanted = truth(load(name), alone, ["out"])
    with _session(name, interface, tmp_path) as session:
        actual = session.run({item.name: [row[item.name].astype(np.int32) for row in requests] for item in inputs})[
            "out"
        ]
    for one, two in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(one, two[0][0], atol=2e-5)


def test_without_a_mask_padded_sequences_have_one_length(tmp_path: Path) -> None:
    name = "types_no_table_ts17"
    requests = sequences(inputs_of(name), (4, 4))
    with _session(name, "padded", tmp_path) as session:
        request = {key: [row[key].astype(np.int32) for row in requests] for key in requests[0]}
        actual = session.run(request)["out"]
        np.testing.assert_allclose(actual[1], truth(load(name), requests, ["out"])[1][0][0], atol=2e-5)
        request = {key: [rows[0], rows[1][:2]] for key, rows in request.items()}
        with pytest.raises(SessionError, match=r"the sequences have 2 to 4 tokens and the model has no mask"):
            session.run(request)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ({"input": "attention_mask", "kept": [], "masked": [0], "plain": True}, r"mask\.kept is \[\]"),
        ({"input": "attention_mask", "kept": [1], "masked": ["0"], "plain": True}, r"mask\.masked\[0\] is '0'"),
        (
            {"input": "attention_mask", "kept": [1], "masked": [0], "plain": 1},
            r"mask\.plain is 1, allowed: true or false",
        ),
        (["attention_mask"], r"mask is \['attention_mask'\]"),
    ],
)
def test_damaged_masks_are_errors(mask: Any, reason: str) -> None:
    raw = {
        "format": 1,
        "interface": "padded",
        "precision": "fp32",
        "inputs": [{"name": "input_ids", "role": "tokens", "limit": None, "dtype": "int64"}],
        "outputs": [{"name": "out", "layout": "packed", "dtype": "float32"}],
        "mask": mask,
    }
    with pytest.raises(SessionError, match=reason):
        parse_metadata(raw, "test")
