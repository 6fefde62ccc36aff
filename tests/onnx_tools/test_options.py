# SPDX-License-Identifier: Apache-2.0
"""Options for rewriting a model, as a value and as keywords."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from padfree.onnx_tools import RewriteError, RewriteOptions, load_model, rewrite

from tests.support.exports import metadata_of

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "bert_dynamo.onnx"


def test_a_value_means_what_keywords_mean() -> None:
    keywords = {"interface": "padded", "precision": "fp16", "verify": False, "masks": "contiguous"}
    options = RewriteOptions.of_keywords(**keywords)
    assert options == RewriteOptions("padded", "fp16", verify=False, mask_form="contiguous")
    made = [rewrite(load_model(FIXTURE), options), rewrite(load_model(FIXTURE), **keywords)]
    assert made[0].model == made[1].model
    assert metadata_of(made[0])["masks"] == "contiguous"


def test_the_mask_is_an_input_and_its_form_a_word() -> None:
    options = RewriteOptions.of_keywords(mask="attention_mask", masks="contiguous")
    assert (options.mask_input, options.mask_form) == ("attention_mask", "contiguous")
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.mask_form = "any"  # type: ignore[misc]


def test_options_are_given_one_way() -> None:
    with pytest.raises(RewriteError, match="as a value and as keywords; give one"):
        rewrite(load_model(FIXTURE), RewriteOptions(), interface="padded")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RewriteOptions(interface="ragged"), "interface is 'ragged', allowed are packed, padded"),
        (RewriteOptions(precision="int8"), "precision is 'int8', allowed are fp32, fp16"),
        (RewriteOptions(verify="some"), "verify is 'some', allowed are True, False and 'whole'"),
        (RewriteOptions(mask_form="prefix"), "masks is 'prefix', allowed are any, contiguous"),
    ],
)
def test_values_that_are_not_allowed_are_refused(options: RewriteOptions, message: str) -> None:
    with pytest.raises(RewriteError, match=message):
        rewrite(load_model(FIXTURE), options)
