# SPDX-License-Identifier: Apache-2.0
"""GEMMs that stay in half precision so that outputs keep a cosine: how many, and which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.eight_bits import quantize
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.graph_model import GraphModel
from padfree.onnx_tools.linear import with_linear
from padfree.onnx_tools.quantization import FORMATS, QuantizationOptions
from padfree.onnx_tools.quantization.layers import choose_layers
from padfree.onnx_tools.quantization.losses import ExactResult
from padfree.onnx_tools.quantization.scales import TensorScale
from padfree.onnx_tools.quantization.target import fewest_kept
from padfree.onnx_tools.quantization.weights import QuantizedWeights
from padfree.onnx_tools.synthetic import bert_model

from .test_int8 import BATCHES, INNER, OPTIONS, VOCABULARY, WIDTH, describe, linears

GEMMS = 8


@pytest.mark.parametrize("wanted", [0, 1, 5, 47, None])
def test_the_fewest_that_are_enough(wanted: int | None) -> None:
    gemms, asked = 48, list[int]()

    def cosine_of(kept: int) -> float:
        asked.append(kept)
        return 1.0 if wanted is not None and kept >= wanted else 0.5

    assert fewest_kept(gemms, cosine_of, 0.9) == wanted
    assert len(asked) <= 7
    assert max(asked) < gemms


def worst_cosine(described: Mapping[str, Any]) -> float:
    return min(float(effect["mean_cosine"]) for effect in described["outputs"].values())


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_calibration_keeps_what_loses_most_per_token(precision: str) -> None:
    original = bert_model(2, WIDTH, 2, INNER, VOCABULARY, 64)
    half = with_linear(Model.of(rewrite(original, precision="fp16", verify=False).model), fold_streams=False)
    number_format = FORMATS[precision]
    all_gemms = describe(quantize(half, BATCHES, QuantizationOptions(number_format=number_format)))
    least = 1 - (1 - worst_cosine(all_gemms)) / 2
    assert all_gemms["share"] == 1
    assert not all_gemms["kept"]
    some = describe(quantize(half, BATCHES, QuantizationOptions(least_cosine=least, number_format=number_format)))
    assert worst_cosine(some) >= least == some["least_cosine"]
    order = sorted(all_gemms["layers"], key=lambda layer: -layer["loss_per_token"])
    assert list(some["kept"]) == [layer["name"] for layer in order[: len(some["kept"])]]
    assert 0 < len(some["kept"]) < GEMMS
    assert 0 < some["share"] < 1
    assert all(f"per token; kept for a cosine of {least:g}" in reason for reason in some["kept"].values())


def test_what_cannot_be_reached_is_refused() -> None:
    original = bert_model(1, WIDTH, 2, INNER, VOCABULARY, 64)
    half = with_linear(Model.of(rewrite(original, precision="fp16", verify=False).model), fold_streams=False)
    options = QuantizationOptions(least_cosine=0.9999999999, number_format=OPTIONS.number_format)
    with pytest.raises(RewriteError, match="with a single GEMM in int8 the cosine is below 1 on the calibration data"):
        quantize(half, BATCHES, options)
    with pytest.raises(RewriteError, match="the least cosine is 1, allowed: a number above 0 and below 1"):
        QuantizationOptions(least_cosine=1.0)
    assert len(linears(quantize(half, BATCHES, OPTIONS))) == GEMMS // 2


def test_a_long_row_hides_what_others_lose() -> None:
    """One token with numbers a hundred times as large decides the scale, and the length of the error and the result."""
    original = bert_model(1, WIDTH, 2, INNER, VOCABULARY, 64)
    half = with_linear(Model.of(rewrite(original, precision="fp16", verify=False).model), fold_streams=False)
    node = choose_layers(GraphModel.of(half).graph, OPTIONS).chosen_layers[0].node
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 32), (32, 16)))
    x[0] *= 100
    scale = TensorScale(float(np.abs(x).max()) / 127)
    number_format = OPTIONS.number_format
    quantized = QuantizedWeights(number_format).quantize(weight, scale)
    lost = ExactResult(node, x, weight).loss(scale, quantized, number_format)
    assert lost.whole < 0.05
    assert lost.per_token > 0.3
