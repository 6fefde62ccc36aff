# SPDX-License-Identifier: Apache-2.0
"""Requests of nothing but lists of ids have the same outcome if read all at once as if read like all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from padfree.runtime import SessionError
from padfree.runtime import request as request_module
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.request import read_request


def outcome(request: Any, metadata: Any) -> Any:
    """Every array with its type, or the error's message."""
    try:
        ragged = read_request(request, metadata)
    except SessionError as error:
        return str(error)
    arrays = {**ragged.tokens, "": ragged.seq_lens}
    return [(name, str(array.dtype), array.shape, array.tolist()) for name, array in arrays.items()]


def both_ways(request: Any, raw: dict[str, Any]) -> tuple[Any, Any]:
    metadata = parse_metadata(raw, "test")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(request_module, "_read_lists", lambda *_: None)
        slowly = outcome(request, metadata)
    return outcome(request, metadata), slowly


@pytest.mark.parametrize(
    "request_",
    [
        [],
        [[]],
        [[], []],
        [[1, 2], [], [3]],
        [[99]],
        [[1], [2, 100]],
        [[-1]],
        [[1] * 16],
        [[2], [1] * 17],
        [[1, 2.0]],
        [[True]],
        [np.array([1, 2])],
        ([1, 2],),
        {"input_ids": [[1, 2]]},
    ],
)
def test_the_outcome_is_the_same(packed_metadata: dict[str, Any], request_: Any) -> None:
    at_once, slowly = both_ways(request_, packed_metadata)
    assert at_once == slowly


@given(request=st.lists(st.lists(st.integers(-2, 110), max_size=18), max_size=4))
def test_any_lists(request: list[list[int]]) -> None:
    inputs = [
        {"name": "token_type_ids", "role": "tokens", "limit": 2, "dtype": "int32"},
        {"name": "input_ids", "role": "tokens", "limit": 100, "dtype": "int32"},
        {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
    ]
    outputs = [{"name": "vector", "layout": "per_sequence", "dtype": "float32"}]
    raw = {"format": 1, "interface": "packed", "precision": "fp32", "inputs": inputs, "outputs": outputs}
    at_once, slowly = both_ways(request, {**raw, "max_positions": 16, "plugins": {}})
    assert at_once == slowly


@pytest.mark.parametrize("change", ["another input", "excluded ids", "a width"])
def test_what_has_to_be_looked_at_is(packed_metadata: dict[str, Any], change: str) -> None:
    inputs = list(packed_metadata["inputs"])
    raw = {**packed_metadata, "inputs": inputs}
    if change == "another input":
        inputs.append({"name": "position_ids", "role": "tokens", "limit": 16, "dtype": "int32"})
    elif change == "a width":
        inputs.append({"name": "bbox", "role": "tokens", "limit": 9, "dtype": "int32", "width": 4})
    else:
        raw["coverage"] = {**packed_metadata["coverage"], "excluded_ids": {"input_ids": [7]}}
    at_once, slowly = both_ways([[5, 7]], raw)
    assert at_once == slowly
    assert isinstance(at_once, str), "an error"


def test_nothing_is_looked_at_twice(packed_metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_columns(*_: object) -> None:
        raise AssertionError("read by itself")

    monkeypatch.setattr(request_module, "read_column", no_columns)
    assert outcome([[1, 2], [3]], parse_metadata(packed_metadata, "test"))[-1][3] == [2, 1]
