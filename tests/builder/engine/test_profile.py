# SPDX-License-Identifier: Apache-2.0
"""Profiles: defaults, contradictions with the model or within a profile, and the shapes that follow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from padfree.builder import BuildError
from padfree.builder.engine.profile import ProfileOptions, ShapeRange, choose_profile, shape_ranges
from padfree.contract.metadata import Metadata
from padfree.runtime import Profile
from padfree.runtime.plan_files import parse_metadata


@pytest.fixture
def metadata(packed_metadata: dict[str, Any]) -> Metadata:
    return parse_metadata({**packed_metadata, "max_positions": 512}, "test")


@pytest.fixture
def padded(packed_metadata: dict[str, Any]) -> Metadata:
    return parse_metadata({**packed_metadata, "interface": "padded", "max_positions": 512}, "test")


def test_defaults_come_from_the_model(metadata: Metadata) -> None:
    assert choose_profile(metadata, ProfileOptions()) == Profile(1, 9830, 16384, 32, 512)


def test_default_tokens_are_bounded(packed_metadata: dict[str, Any]) -> None:
    long = parse_metadata({**packed_metadata, "max_positions": 8192}, "test")
    assert choose_profile(long, ProfileOptions()).max_tokens == 65536
    assert choose_profile(long, ProfileOptions(max_batch=1)).max_tokens == 8192


def test_without_positions_sequences_are_512_long(packed_metadata: dict[str, Any]) -> None:
    endless = parse_metadata({**packed_metadata, "max_positions": None}, "test")
    assert choose_profile(endless, ProfileOptions()).max_seq_len == 512
    assert choose_profile(endless, ProfileOptions(max_seq_len=4096)).max_seq_len == 4096


def test_few_tokens_shorten_the_default_sequence(metadata: Metadata) -> None:
    assert choose_profile(metadata, ProfileOptions(max_tokens=100)) == Profile(1, 60, 100, 32, 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_len": 600}, "profile max 600 > model limit 512 for 'input_ids'; pass --max-seq-len 512"),
        ({"max_batch": 0}, "profile: --max-batch 0, allowed: 1 or more"),
        ({"opt_tokens": -5}, "profile: --opt-tokens -5, allowed: 1 or more"),
        ({"max_batch": 2, "max_tokens": 2000}, "profile max 2000 tokens > 2 sequences x 512 tokens = 1024"),
        ({"max_tokens": 100, "max_seq_len": 128}, "pass --max-seq-len 100 or --max-tokens 128"),
        ({"max_tokens": 512, "opt_tokens": 513}, "profile optimum 513 tokens > maximum 512"),
    ],
)
def test_contradictions(metadata: Metadata, options: dict[str, int], message: str) -> None:
    with pytest.raises(BuildError) as caught:
        choose_profile(metadata, ProfileOptions(**options))
    assert message in str(caught.value)


def test_padded_engines_have_no_token_limit_of_their_own(padded: Metadata) -> None:
    with pytest.raises(BuildError, match="leave --max-tokens out"):
        choose_profile(padded, ProfileOptions(max_tokens=100))
    with pytest.raises(BuildError, match="leave --opt-tokens out"):
        choose_profile(padded, ProfileOptions(opt_tokens=100))
    assert choose_profile(padded, ProfileOptions(max_batch=300)).max_tokens == 300 * 512


def test_shapes_of_packed_inputs(metadata: Metadata) -> None:
    ranges = shape_ranges(metadata, Profile(1, 600, 1000, 8, 512))
    assert ranges == [
        ShapeRange("input_ids", (1,), (600,), (1000,)),
        ShapeRange("token_type_ids", (1,), (600,), (1000,)),
        ShapeRange("seq_lens", (1,), (8,), (8,)),
    ]


def test_the_shape_input_takes_the_tokens_of_a_whole_request(packed_metadata: dict[str, Any]) -> None:
    longest = {"name": "max_seqlen", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    metadata = parse_metadata({**packed_metadata, "inputs": [*packed_metadata["inputs"], longest]}, "test")
    assert shape_ranges(metadata, Profile(1, 600, 1000, 8, 512))[-1] == ShapeRange("max_seqlen", (1,), (512,), (1000,))


def test_shapes_of_padded_inputs(padded: Metadata) -> None:
    """Lengths that replace a mask are one number per sequence here, too."""
    assert shape_ranges(padded, Profile(1, 1, 1, 8, 512)) == [
        ShapeRange("input_ids", (1, 1), (8, 512), (8, 512)),
        ShapeRange("token_type_ids", (1, 1), (8, 512), (8, 512)),
        ShapeRange("seq_lens", (1,), (8,), (8,)),
    ]


numbers = st.none() | st.integers(1, 700)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(max_batch=numbers, max_seq_len=numbers, max_tokens=numbers, opt_tokens=numbers)
def test_every_profile_is_ordered(
    metadata: Metadata, max_batch: int | None, max_seq_len: int | None, max_tokens: int | None, opt_tokens: int | None
) -> None:
    try:
        profile = choose_profile(metadata, ProfileOptions(max_batch, max_seq_len, max_tokens, opt_tokens))
    except BuildError:
        return
    assert 1 <= profile.min_tokens <= profile.opt_tokens <= profile.max_tokens
    assert profile.max_seq_len <= min(512, profile.max_tokens)
    assert profile.max_tokens <= profile.max_batch * profile.max_seq_len
