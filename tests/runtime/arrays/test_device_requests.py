# SPDX-License-Identifier: Apache-2.0
"""Packed requests with arrays on the GPU: what is checked without reading their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.runtime import Session, SessionError
from padfree.runtime.arrays.device_arrays import CallerStream, DeviceInput
from padfree.runtime.arrays.device_requests import device_feeds
from padfree.runtime.plan_files import parse_metadata

PROFILE = {"min_tokens": 1, "opt_tokens": 10, "max_tokens": 24, "max_batch": 3, "max_seq_len": 12}
ENGINE = {
    "tensorrt": "10.6.0",
    "gpu_name": "NVIDIA H200",
    "compute_capability": "9.0",
    "profile": PROFILE,
    "plan_bytes": 0,
    "plan_sha256": "0" * 64,
    "plugin_layers": {},
}


class OnGPU:
    """An array on a GPU: it has a shape, and no values to read."""

    def __init__(self, *shape: int) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<i4", "data": (4096, False), "version": 3}


class Reader:
    """A backend that takes arrays on the GPU."""

    def __init__(self) -> None:
        self.read: list[tuple[str, Any]] = []

    def read_device_array(self, value: Any, name: str, stream: Any) -> DeviceInput:
        self.read.append((name, stream))
        return DeviceInput(4096, value.__cuda_array_interface__["shape"], np.dtype(np.int32))


@pytest.fixture
def feeds_of(packed_metadata: dict[str, Any]) -> Any:
    """device_feeds for the packed model, with an input for the padded axis."""
    longest = {"name": "longest", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    raw = {**packed_metadata, "inputs": [*packed_metadata["inputs"], longest], "engine": ENGINE}
    metadata = parse_metadata(raw, "test")

    def make(inputs: Any, seq_lens: Any, *, filler_tokens: int = 0, backend: Any = None) -> dict[str, Any]:
        used = backend or Reader()
        return device_feeds(inputs, seq_lens, metadata, used, filler_tokens=filler_tokens, stream=CallerStream(55))

    return make


def test_everything_on_the_gpu(feeds_of: Any) -> None:
    reader = Reader()
    feeds = feeds_of({"input_ids": OnGPU(8), "token_type_ids": OnGPU(8)}, OnGPU(2), backend=reader)
    assert {name: feed.shape for name, feed in feeds.items()} == {
        "input_ids": (8,),
        "token_type_ids": (8,),
        "seq_lens": (2,),
        "longest": (PROFILE["max_seq_len"],),  # the lengths are not read, so this is the largest one allowed
    }
    assert reader.read == [(name, CallerStream(55)) for name in ("seq_lens", "input_ids", "token_type_ids")]


def test_missing_types_are_zeros_and_lengths_of_the_host_are_used(feeds_of: Any) -> None:
    feeds = feeds_of(OnGPU(8), [5, 2], filler_tokens=1)
    assert isinstance(feeds["input_ids"], DeviceInput)
    assert feeds["token_type_ids"].tolist() == [0] * 8
    assert feeds["seq_lens"].tolist() == [5, 2]
    assert feeds["longest"].shape == (5,)


def test_no_tokens_become_one_filler(feeds_of: Any) -> None:
    """As with lists, because engines take at least one token."""
    feeds = feeds_of({"input_ids": OnGPU(0), "token_type_ids": OnGPU(0)}, [0, 0])
    assert {name: feed.tolist() for name, feed in feeds.items()} == {
        "input_ids": [0],
        "token_type_ids": [0],
        "seq_lens": [0, 0],
        "longest": [0],
    }


def test_ids_of_the_host_with_lengths_on_the_gpu(feeds_of: Any) -> None:
    feeds = feeds_of([1, 2, 3], OnGPU(1))
    assert feeds["input_ids"].dtype == np.int32
    assert feeds["input_ids"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        (OnGPU(2, 4), [8], r"'input_ids' has shape \[2, 4\], allowed: one dimension"),
        (OnGPU(8), OnGPU(2, 1), r"'seq_lens' has shape \[2, 1\], allowed: one dimension"),
        ({"input_ids": OnGPU(8), "token_type_ids": OnGPU(7)}, [8], "'token_type_ids' has 7 tokens, 'input_ids' has 8"),
        ({"input_ids": OnGPU(8), "mask": OnGPU(8)}, [8], "unknown input 'mask'"),
        ({"token_type_ids": OnGPU(8)}, [8], "input 'input_ids' is missing"),
        (OnGPU(8), [4, 3], "seq_lens add up to 7"),
        (OnGPU(8), [9, -1], r"seq_lens\[1\] is -1"),
        (OnGPU(13), [13], "sequence 0 has 13 tokens, the engine's profile takes 12"),
        (OnGPU(25), OnGPU(3), "25 tokens in one run, the engine's profile takes 24"),
        (OnGPU(4), OnGPU(4), "4 sequences in one run, the engine's profile takes 3"),
        (OnGPU(4), OnGPU(0), "seq_lens is empty"),
        (
            {"input_ids": OnGPU(3), "token_type_ids": [0, 1, 9]},
            [3],
            "'token_type_ids' value 9 at sequence 0, position 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(feeds_of: Any, inputs: Any, lengths: Any, message: str) -> None:
    with pytest.raises(SessionError, match=message):
        feeds_of(inputs, lengths)


def test_the_cpu_takes_no_arrays_of_a_gpu(packed_model: Any) -> None:
    path: Path = packed_model()
    with Session(path) as session, pytest.raises(SessionError, match="arrays on the GPU need a plan"):
        session.run_packed(OnGPU(3), [3])
