# SPDX-License-Identifier: Apache-2.0
"""Parameters of config.pbtxt: written, read back, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from padfree.runtime import SessionError
from padfree.runtime.triton.parameters import EncoderParameters, TokenizerParameters


def config(**values: str) -> dict[str, Any]:
    """A model configuration as the server passes it, including a parameter that is not padfree's."""
    inputs = {f"padfree_{name}": {"string_value": value} for name, value in values.items()}
    return {"parameters": {**inputs, "EXECUTION_ENV_PATH": {"string_value": "/env.tar.gz"}}}


@pytest.mark.parametrize(
    "parameters",
    [
        EncoderParameters("model.plan"),
        EncoderParameters("model.onnx", max_tokens=4096, max_sequences=64, cuda_graphs=True, allow_other_gpu=True),
        EncoderParameters("model.onnx", fair_share=True, client="x-client", max_waiting_tokens=9),
        TokenizerParameters(512),
        TokenizerParameters(128, tokenizer="t.json", long_texts="refuse"),
    ],
)
def test_what_is_written_is_read(parameters: EncoderParameters | TokenizerParameters) -> None:
    strings = parameters.to_strings()
    read = type(parameters).from_config({"parameters": {key: {"string_value": strings[key]} for key in strings}})
    assert read == parameters


def test_defaults_are_left_out() -> None:
    assert EncoderParameters("model.plan").to_strings() == {"padfree_model": "model.plan"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "parameter 'padfree_model' is missing; add it to config.pbtxt"),
        ({"model": ""}, "'padfree_model' is empty"),
        ({"model": "m", "maxtokens": "1"}, "unknown parameter 'padfree_maxtokens', allowed: padfree_model, "),
        ({"model": "m", "max_tokens": "many"}, "'padfree_max_tokens' is 'many', allowed: 0, 1, 2, ..."),
        ({"model": "m", "max_tokens": "-1"}, "'padfree_max_tokens' is '-1', allowed: 0, 1, 2, ..."),
        ({"model": "m", "fair_share": "true", "costs": "c"}, "'padfree_fair_share' does not go with 'padfree_costs'"),
        ({"model": "m", "max_waiting_tokens": "0"}, "'padfree_max_waiting_tokens' is 0, allowed: 1 or more"),
        ({"model": "m", "cuda_graphs": "yes"}, "'padfree_cuda_graphs' is 'yes', allowed: true, false"),
    ],
)
def test_wrong_encoder_parameters(values: dict[str, str], message: str) -> None:
    with pytest.raises(SessionError) as refused:
        EncoderParameters.from_config(config(**values))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_length": "0"}, "'padfree_max_length' is 0, allowed: 1 or more"),
        ({"max_length": "9", "long_texts": "split"}, "'padfree_long_texts' is 'split', allowed: truncate, refuse"),
    ],
)
def test_wrong_tokenizer_parameters(values: dict[str, str], message: str) -> None:
    with pytest.raises(SessionError) as refused:
        TokenizerParameters.from_config(config(**values))
    assert message in str(refused.value)
