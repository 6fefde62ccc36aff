# SPDX-License-Identifier: Apache-2.0
"""Calls with all arrays on the GPU: which calls are known, and that no call that differs passes for a known one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from padfree.runtime.arrays import checked_calls
from padfree.runtime.arrays.checked_calls import CheckedCalls
from padfree.runtime.arrays.dlpack_exchange import exchange_of_type
from padfree.runtime.plan_files import parse_metadata

from .test_dlpack_exchange import STREAM, Library


@pytest.fixture
def library() -> Iterator[Library]:
    yield Library()
    exchange_of_type.cache_clear()


@pytest.fixture
def calls(packed_metadata: dict[str, Any]) -> CheckedCalls:
    return CheckedCalls(parse_metadata(packed_metadata, "test"))


def arrays(library: Library, tokens: int = 6, sequences: int = 2, **changes: Any) -> tuple[dict[str, Any], Any]:
    ids = np.arange(tokens, dtype=np.int32)
    lens = library.array(np.full(sequences, tokens // max(1, sequences), dtype=np.int32))
    return {"input_ids": library.array(ids, **changes), "token_type_ids": library.array(ids % 2)}, lens


def test_a_call_is_known_by_its_description(calls: CheckedCalls, library: Library) -> None:
    inputs, lens = arrays(library)
    call = calls.read(inputs, lens)
    assert call is not None
    assert not calls.is_known(call)
    calls.remember(call)
    again = calls.read(*arrays(library))
    assert again is not None
    assert calls.is_known(again), "other arrays of the same description"
    feed = again.feeds["input_ids"]
    assert (feed.shape, feed.nbytes, feed.stream) == ((6,), 24, STREAM)
    assert set(again.feeds) == {"input_ids", "token_type_ids", "seq_lens"}
    assert library.asked == 2 * [(2, 2)], "a library is asked once a call which stream it works on"


@pytest.mark.parametrize("change", ["tokens", "sequences", "gpu", "type", "steps", "name"])
def test_nothing_else_passes_for_it(calls: CheckedCalls, library: Library, change: str) -> None:
    known = calls.read(*arrays(library))
    assert known is not None
    calls.remember(known)
    inputs, lens = arrays(library)
    if change == "tokens":
        inputs["input_ids"] = library.array(np.arange(7, dtype=np.int32))
    elif change == "sequences":
        lens = library.array(np.zeros(3, dtype=np.int32))
    elif change == "gpu":
        inputs["input_ids"] = library.array(np.arange(6, dtype=np.int32), index=0)
    elif change == "type":
        inputs["input_ids"] = library.array(np.arange(6, dtype=np.int64))
    elif change == "steps":
        inputs["input_ids"] = library.array(np.arange(12, dtype=np.int32)[::2])
    else:
        inputs["something"] = inputs.pop("token_type_ids")
    other = calls.read(inputs, lens)
    assert other is not None
    assert not calls.is_known(other)


def test_what_has_to_be_looked_at_is_no_such_call(calls: CheckedCalls, library: Library) -> None:
    inputs, lens = arrays(library)
    assert calls.read(inputs, [3, 3]) is None, "lengths on the host are checked"
    assert calls.read(inputs["input_ids"], lens) is None, "token types are missing"
    assert calls.read({**inputs, "token_type_ids": np.zeros(6, np.int32)}, lens) is None
    assert calls.read({**inputs, "input_ids": library.array(np.arange(6, dtype=np.int32), kind=13)}, lens) is None
    assert calls.read({"seq_lens": lens, "input_ids": inputs["input_ids"]}, lens) is None
    empty = calls.read(*arrays(library, tokens=0))
    assert empty is not None
    calls.remember(empty)
    assert not calls.is_known(empty), "engines get a filler token, which is made anew"


def test_engines_with_inputs_made_on_the_host_have_none(packed_metadata: dict[str, Any], library: Library) -> None:
    longest = {"name": "longest", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    raw = {**packed_metadata, "inputs": [*packed_metadata["inputs"], longest]}
    assert CheckedCalls(parse_metadata(raw, "test")).read(*arrays(library)) is None


def test_what_is_kept_is_bounded(calls: CheckedCalls, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_calls, "MOST_KEPT", 3)
    for tokens in range(1, 9):
        call = calls.read(*arrays(library, tokens, 1))
        assert call is not None
        calls.remember(call)
        assert calls.is_known(call)
        assert len(calls._checked_keys) <= 3
