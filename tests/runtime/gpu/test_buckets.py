# SPDX-License-Identifier: Apache-2.0
"""Sizes of CUDA graphs: large enough, not much larger, and few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from padfree.contract.metadata import OutputInfo
from padfree.runtime import SessionError
from padfree.runtime.gpu.buckets import Buckets, Sizes, batch_bucket, serves, slot_bucket, token_bucket
from padfree.runtime.plan_files import parse_metadata

NO_LIMIT = 1 << 20


@given(st.integers(1, 70000))
def test_buckets_hold_the_tokens_and_waste_little(tokens: int) -> None:
    for bucket, least, filler in ((token_bucket, 16, max(16, tokens / 32)), (slot_bucket, 1, max(1, tokens / 32))):
        size = bucket(tokens, NO_LIMIT)
        assert 0 <= size - tokens < filler
        assert size % least == 0
        assert bucket(size, NO_LIMIT) == size, "a bucket is its own"


@pytest.mark.parametrize(("bucket", "few"), [(token_bucket, 64 + 32 * 6), (slot_bucket, 64 + 32 * 10)])
def test_buckets_are_few(bucket: Callable[[int, int], int], few: int) -> None:
    buckets = [bucket(size, NO_LIMIT) for size in range(1, 65537)]
    assert buckets == sorted(buckets)
    assert len(set(buckets)) == few, "64 small ones, then 32 an octave"


@pytest.mark.parametrize(
    ("tokens", "limit", "bucket"),
    [(0, 100, 16), (1, 100, 16), (1, 9, 9), (64, 100, 64), (65, 100, 80), (97, 100, 100), (4939, 8192, 4992)],
)
def test_token_bucket(tokens: int, limit: int, bucket: int) -> None:
    assert token_bucket(tokens, limit) == bucket


def test_graphs_that_serve_smaller_sizes() -> None:
    sizes = Sizes(400, 3, 0, 0)
    served = [Sizes(400, 3), Sizes(400, 4), Sizes(400 + 128 + 25, 12)]
    assert all(serves(graph, sizes) for graph in served)
    refused = [Sizes(399, 3), Sizes(400, 2), Sizes(400 + 128 + 26, 3), Sizes(400, 3, 8), Sizes(400, 3, 0, 4)]
    assert not any(serves(graph, sizes) for graph in refused)


def test_buckets_stay_in_the_profile() -> None:
    assert token_bucket(4939, 4950) == 4950
    assert [batch_bucket(sequences, 12) for sequences in (1, 2, 3, 5, 9, 12)] == [1, 2, 4, 8, 12, 12]


def metadata_of(raw: dict[str, Any], profile: Any) -> Any:
    """The metadata of the packed model with an input for the padded axis."""
    longest = {"name": "longest", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    engine = {
        "tensorrt": "10.6.0",
        "gpu_name": "NVIDIA H200",
        "compute_capability": "9.0",
        "profile": profile,
        "plan_bytes": 0,
        "plan_sha256": "0" * 64,
        "plugin_layers": {},
    }
    return parse_metadata({**raw, "inputs": [*raw["inputs"], longest], "engine": engine}, "test")


def test_the_sizes_of_a_run_and_of_its_graph(packed_metadata: dict[str, Any]) -> None:
    profile = {"min_tokens": 1, "opt_tokens": 50, "max_tokens": 200, "max_batch": 12, "max_seq_len": 100}
    buckets = Buckets(metadata_of(packed_metadata, profile))
    shapes = {"input_ids": (129,), "token_type_ids": (129,), "seq_lens": (3,), "longest": (99,)}
    sizes = buckets.sizes(shapes)
    rounded = buckets.round_up(sizes)
    assert (sizes, rounded) == (Sizes(129, 3, 99), Sizes(144, 4, 100))
    assert buckets.input_shapes(sizes) == shapes
    for layout, dims, shape, trimmed in (
        ("packed", None, (144, 7), (129, 7)),
        ("per_sequence", None, (4, 7), (3, 7)),
        ("padded", None, (4, 100, 7), (3, 99, 7)),
        ("padded", ("B", 7, "S", "S"), (4, 7, 100, 100), (3, 7, 99, 99)),
        ("padded", ("S", "B", 7), (100, 4, 7), (99, 3, 7)),
        ("constant", (7, 8), (7, 8), (7, 8)),
    ):
        assert buckets.trim(OutputInfo("y", layout, "float32", None, dims), shape, sizes) == trimmed


def test_inputs_with_several_numbers_a_token(packed_metadata: dict[str, Any]) -> None:
    profile = {"min_tokens": 1, "opt_tokens": 50, "max_tokens": 200, "max_batch": 12, "max_seq_len": 100}
    boxes = {"name": "bbox", "role": "tokens", "limit": None, "dtype": "int32", "width": 4}
    buckets = Buckets(metadata_of({**packed_metadata, "inputs": [*packed_metadata["inputs"], boxes]}, profile))
    result = buckets.input_shapes(Sizes(132, 4))
    assert (result["input_ids"], result["bbox"]) == ((132,), (132, 4))
    assert buckets.sizes({**result, "bbox": (131, 4), "input_ids": (131,)}).tokens == 131


def test_a_model_has_no_buckets(packed_metadata: dict[str, Any]) -> None:
    with pytest.raises(SessionError, match="CUDA graphs need a plan"):
        Buckets(parse_metadata(packed_metadata, "test"))
