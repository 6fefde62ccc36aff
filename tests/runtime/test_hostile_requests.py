# SPDX-License-Identifier: Apache-2.0
"""Whatever arrays a request holds, it is read or refused with a reason, and so is the request next to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from padfree.builder.demo.demo import DEMO_DATA
from padfree.contract.metadata import Metadata
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.request import read_request
from padfree.runtime.triton.answers import Failure, TritonRequest, attempt
from padfree.runtime.triton.items import Item, join, read_item
from padfree.runtime.triton.parameters import TokenizerParameters
from padfree.runtime.triton.texts import OUTPUTS, TextTokenizer

many = settings(max_examples=150)
NAMES = st.sampled_from(["input_ids", "token_type_ids", "seq_lens", "attention_mask", "", "input_ids\x00"])
TELLING = [-(2**63), -(2**31) - 1, -1, 0, 1, 2, 16, 17, 99, 100, 2**31 - 1, 2**31, 2**32, 2**63 - 1]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
INTEGERS = arrays.arrays(st.sampled_from([np.int32, np.int64]), SHAPES, elements=st.integers(0, 20))
HOSTILE = arrays.arrays(np.int64, SHAPES, elements=st.sampled_from(TELLING))
OTHERS = arrays.arrays(
    st.sampled_from(["u8", "i1", "f4", "f8", "?", "c8", "U3", "S2", "M8[s]", "O"]).map(np.dtype),
    SHAPES,
    fill=st.nothing(),
)
TENSORS = st.dictionaries(NAMES, INTEGERS | HOSTILE | OTHERS, max_size=4)
LIKELY = st.fixed_dictionaries({"input_ids": INTEGERS | HOSTILE}, optional={"seq_lens": INTEGERS | HOSTILE})


def metadata() -> Metadata:
    """The metadata of a model with ids below 100 and 16 positions."""
    inputs = [
        {"name": "input_ids", "role": "tokens", "limit": 100, "dtype": "int32"},
        {"name": "token_type_ids", "role": "tokens", "limit": 2, "dtype": "int32"},
        {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
    ]
    outputs = [{"name": "hidden", "layout": "packed", "dtype": "float32", "shape": [None, 2]}]
    raw = {"format": 1, "interface": "packed", "precision": "fp32", "inputs": inputs, "outputs": outputs}
    return parse_metadata({**raw, "max_positions": 16, "opset": 17}, "test")


@given(TENSORS | LIKELY, st.booleans())
@many
def test_tensors_of_a_server(tensors: dict[str, npt.NDArray[Any]], first: bool) -> None:
    good = read_item({"input_ids": np.array([[5, 6]], np.int32)}, metadata())
    item = attempt(read_item, tensors, metadata())
    if isinstance(item, Failure):
        assert item.is_refusal
        assert "; " in item.message, "no next step"
        return
    batch = attempt(join, [good, item] if first else [item, good], metadata())
    if isinstance(batch, Failure):
        assert isinstance(attempt(join, [item], metadata()), Failure)
        return
    assert isinstance(item, Item)
    ids = batch.tokens["input_ids"]
    assert ids.dtype == np.int32
    assert ids.size == batch.seq_lens.sum()
    assert ids.min() >= 0
    assert ids.max() < 100
    assert batch.seq_lens.max() <= 16


@given(TENSORS | LIKELY | INTEGERS | HOSTILE | st.recursive(st.none() | st.integers() | st.text(), st.lists))
@many
def test_requests_of_python(request: Any) -> None:
    ragged = attempt(read_request, request, metadata())
    if isinstance(ragged, Failure):
        assert ragged.message
        return
    ids = ragged.tokens["input_ids"]
    assert ids.size == ragged.seq_lens.sum()
    assert not ids.size or (ids.min() >= 0 and ids.max() < 100)


TEXTS = st.binary(max_size=30) | st.text(max_size=10).map(str.encode) | st.just(b"\xed\xa0\x80") | st.just(b"x" * 70)
COLUMNS = st.lists(TEXTS, max_size=4).flatmap(
    lambda rows: st.sampled_from([(len(rows), 1), (1, len(rows)), (len(rows),)]).map(
        lambda shape: np.array([*rows, None], dtype=object)[:-1].reshape(shape)
    )
)
TOKENIZER = TextTokenizer(
    DEMO_DATA / "tokenizer.json", TokenizerParameters(max_length=8, max_text_bytes=60, max_request_bytes=100)
)


@given(st.lists(st.dictionaries(st.sampled_from(["text", "text_pair", "other"]), COLUMNS, max_size=3), max_size=3))
@many
def test_texts(requests: list[dict[str, npt.NDArray[Any]]]) -> None:
    results = [TOKENIZER.read(TritonRequest(tensors, OUTPUTS)) for tensors in requests]
    for answer, tensors in zip(TOKENIZER.answer(results), requests, strict=True):
        if isinstance(answer, Failure):
            assert answer.is_refusal
        else:
            assert answer["input_ids"].shape == (len(tensors["text"]), answer["seq_lens"].max())
            assert answer["seq_lens"].max() <= 8
