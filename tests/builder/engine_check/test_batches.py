# SPDX-License-Identifier: Apache-2.0
"""The batches of a check stay within whatever models and profiles allow."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from padfree.builder.engine.preparation import metadata_of
from padfree.builder.engine_check.batches import LONG, CheckedBatch, make_batches
from padfree.builder.engine_check.reference import LEAST_TOKENS, _most_tokens, compute_reference, multiplied_weights
from padfree.contract.metadata import InputInfo, Metadata, Profile
from padfree.contract.names import PREFIX
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.request import read_packed

from tests.onnx_tools.test_notes import without_mask
from tests.support import families
from tests.support.rewritings import Rewritings

PROFILE = Profile(1, 100, 256, 8, 32)


def read_metadata(model: Any) -> Metadata:
    return parse_metadata(metadata_of(model), "test")


@pytest.mark.parametrize(
    "profile", [PROFILE, Profile(1, 1, 1, 1, 1), Profile(1, 5, 9, 2, 7), Profile(1, 9, 4096, 3, 2048)]
)
def test_every_packed_batch_is_one_that_session_takes(profile: Profile) -> None:
    metadata = read_metadata(rewrite(bert_model(1, 32, 2, 64, 50, 4096), verify=False).model)
    engine: Any = dataclasses.replace(metadata, engine=None, max_positions=profile.max_seq_len)
    for batch in make_batches(metadata, profile, most_tokens=1000):
        feeds = batch.inputs(metadata)
        tokens = {item.name: feeds[item.name] for item in metadata.token_inputs()}
        read_packed(tokens, feeds["seq_lens"], engine, filler_tokens=batch.filler_tokens)
        assert len(feeds["input_ids"]) <= profile.max_tokens
        assert len(feeds["seq_lens"]) <= profile.max_batch


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (Profile(1, 100, 65536, 32, 4096), [33, 1, 70, 100]),
        (Profile(1, 100, 65536, 3, 90), [33, 1, 45]),
        (Profile(1, 5, 9, 2, 3), [2, 1]),
        (Profile(1, 30, 60, 8, 4096), [30, 30]),
        (Profile(1, 5, 9, 1, 90), None),
        (Profile(1, 1, 9, 9, 1), None),
    ],
)
def test_sequences_that_share_a_prefix_fit_the_profile(profile: Profile, expected: list[int] | None) -> None:
    packed = rewrite(bert_model(1, 32, 2, 64, 50, 4096), verify=False).model
    plain = read_metadata(packed)
    metadata = dataclasses.replace(plain, inputs=(*plain.inputs, InputInfo("prefix", PREFIX, "prefix", None, "int32")))
    batches = {batch.name: batch for batch in make_batches(metadata, profile, most_tokens=1000)}
    assert "shared prefix" not in {batch.name for batch in make_batches(plain, profile, most_tokens=1000)}
    if expected is None:
        assert "shared prefix" not in batches
        return
    batch = batches["shared prefix"]
    assert batch.seq_lens.tolist() == expected
    last = len(expected) - 1
    assert batch.inputs(metadata)["prefix"].tolist() == [last] * last + [-1]
    assert all(length + expected[-1] <= profile.max_seq_len for length in expected[:-1])
    assert (sum(expected) <= profile.max_tokens, len(expected) <= profile.max_batch) == (True, True)


def lengths(batches: tuple[CheckedBatch, ...]) -> dict[str, list[int]]:
    return {batch.name: batch.seq_lens.tolist() for batch in batches}


def test_the_kinds_of_batches() -> None:
    packed = read_metadata(rewrite(bert_model(1, 32, 2, 64, 50, 4096), verify=False).model)
    actual = lengths(make_batches(packed, Profile(1, 100, 65536, 32, 4096), most_tokens=10**6))
    assert actual["one token"] == [1]
    assert actual["longest"] == [512]
    assert sorted(actual["mixed"]) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert actual["filler and empty"] == [0, 33, 0, 0, 5, 1, 0]
    assert actual == lengths(make_batches(packed, Profile(1, 100, 65536, 32, 4096), most_tokens=10**6))
    assert "long" not in actual
    profile = Profile(1, 100, 65536, 32, 4096)
    assert lengths(make_batches(packed, profile, most_tokens=600, most_long=2400))["long"] == [LONG]
    assert lengths(make_batches(packed, profile, most_tokens=200, most_long=800))["long"] == [800]
    assert "long" not in lengths(make_batches(packed, profile, most_tokens=100, most_long=400))
    short = Profile(1, 100, 65536, 32, 512)
    assert "long" not in lengths(make_batches(packed, short, most_tokens=600, most_long=2400))
    few = lengths(make_batches(packed, Profile(1, 100, 65536, 32, 4096), most_tokens=LEAST_TOKENS))
    assert few["longest"] == [LEAST_TOKENS]
    assert all(sum(item) <= LEAST_TOKENS for item in few.values())


def test_large_models_and_wide_outputs_get_fewer_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert_model(1, 64, 2, 128, 50, 64)
    products = 4 * 64 * 64 + 2 * 64 * 128 + 64 * 64  # of attention, the feed-forward network and the pooler
    assert multiplied_weights(rewrite(model, verify=False).model) == products
    metadata = read_metadata(rewrite(model, verify=False).model)
    tokens = _most_tokens(Model(rewrite(model, verify=False).model), metadata)
    assert tokens == (1 << 24) // 64  # the width of the result
    wide = dataclasses.replace(metadata, outputs=(dataclasses.replace(metadata.outputs[0], shape=(None, 150_000)),))
    assert _most_tokens(Model(rewrite(model, verify=False).model), wide) == (1 << 24) // 150_000
    monkeypatch.setattr("padfree.builder.engine_check.reference.MOST_MULTIPLICATIONS", 100 * products)
    assert _most_tokens(Model(rewrite(model, verify=False).model), metadata) == 100


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize(
    "case", [case for case in families.all_cases() if not case.static][::11], ids=lambda case: case.name
)
def test_onnxruntime_answers_for_every_family(case: Any, interface: str, rewritings: Rewritings) -> None:
    """Among them are ids that models look for, masks that are ids, several outputs, and parts that stay padded."""
    try:
        model = rewritings.of_case(case, interface).model
    except RewriteError as error:
        pytest.skip(str(error)[:100])
    metadata = read_metadata(model)
    reference = compute_reference(Model(model), metadata, PROFILE)
    assert len(reference.batches) >= 3
    for answers in reference.answers:
        for output in metadata.outputs:
            assert output.name in answers
            assert not np.isnan(answers[output.name].astype(np.float64)).all()


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_an_input_that_nothing_reads_is_fed(interface: str) -> None:
    result = rewrite(without_mask(), interface=interface)
    reference = compute_reference(Model(result.model), read_metadata(result.model), PROFILE)
    assert all(np.isfinite(values).all() for answer in reference.answers for values in answer.values())
