# SPDX-License-Identifier: Apache-2.0
"""Arrays processed in blocks: nothing is left out, wherever it is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from padfree.onnx_tools import VerificationError
from padfree.onnx_tools.files import DeferredData, Model, Weights, of_bfloat16
from padfree.onnx_tools.precision import rounded_weights
from padfree.onnx_tools.precision.blocks import blocks, exact_product, largest_of
from padfree.onnx_tools.precision.ranges import unfit_reason
from padfree.onnx_tools.precision.rounded_weights import round_to

from tests.support.messages import check_weights

SHAPE = (300, 701)  # more than three blocks, the last one shorter


def values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def model(array: np.ndarray, precision: str = "fp32") -> ModelProto:
    tensor = numpy_helper.from_array(array) if precision == "fp32" else round_to(array, precision)
    tensor.name = "w"
    return helper.make_model(helper.make_graph([], "g", [], [], [tensor]))


@pytest.mark.parametrize("array", [values(), values().T, np.zeros((0, 3), np.float32), np.array(2.0, np.float32)])
def test_blocks_are_all_of_an_array(array: np.ndarray) -> None:
    pieces = [piece for piece in blocks(array) if piece.size]
    assert np.array_equal(np.concatenate([np.zeros(0, np.float32), *pieces]), array.ravel())


@pytest.mark.parametrize("place", [(0, 0), (150, 350), (299, 700)])
def test_the_largest_is_found_anywhere_and_infinity_passed_over(place: tuple[int, int]) -> None:
    array = values()
    array[1, 1] = -np.inf
    array[place] = -99
    assert largest_of(array) == 99
    assert largest_of(np.full(3, np.nan, np.float32)) == 0


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("place", [(0, 0), (150, 350), (299, 700)])
def test_a_wrong_weight_is_found_anywhere(place: tuple[int, int], precision: str) -> None:
    array = values()
    array[2, 2], array[3, 3] = np.nan, np.inf
    check_weights(model(array), model(array, precision), precision)
    for wrong in (np.float32(1.5) * array[place] + 1, np.float32(np.nan), np.float32(np.inf)):
        changed = array.copy()
        changed[place] = wrong
        with pytest.raises(VerificationError, match=rf"rounded to {precision} \(1 of 210300 values differ\)"):
            check_weights(model(array), model(changed, precision), precision)


def defer_weight(bits: np.ndarray) -> Model:
    """A model of one weight that its file has in bfloat16."""
    weights, result = Weights(), model(of_bfloat16(bits))
    narrow = {int(TensorProto.BFLOAT16): DeferredData(bits.nbytes, lambda: bits)}
    weights.hold(result.graph.initializer[0], DeferredData(2 * bits.nbytes, lambda: of_bfloat16(bits), narrow))
    return Model(result, weights)


@pytest.mark.parametrize("place", [(0, 0), (150, 350), (299, 700)])
@pytest.mark.parametrize("number", [0.02, 1e-7, 0.0, np.inf, np.nan])
def test_a_wrong_weight_is_found_where_the_file_has_bfloat16(place: tuple[int, int], number: float) -> None:
    array = values()
    array[place] = number
    array[2, 2], array[3, 3], array[4, 4] = np.nan, np.inf, 1e-6
    bits = (array.view(np.uint32) >> 16).astype(np.uint16)
    exact = of_bfloat16(bits)
    original = defer_weight(bits)
    rounded_weights.check_weights(original, Model(model(exact, "fp16")), "fp16")
    for wrong in (np.float32(1.5) * np.nan_to_num(exact[place], posinf=1) + 1, np.float32(np.nan), np.float32(-np.inf)):
        if np.isnan(wrong) and np.isnan(number):
            continue
        changed = exact.copy()
        changed[place] = wrong
        with pytest.raises(VerificationError, match=r"rounded to fp16 \(1 of 210300 values differ\)"):
            rounded_weights.check_weights(original, Model(model(changed, "fp16")), "fp16")


def test_what_a_type_loses_is_summed_over_all_blocks() -> None:
    small = values() * 1e-7
    assert "fp16 loses" in unfit_reason(small, "fp16")
    lost = np.linalg.norm(small.astype(np.float64) - small.astype(np.float16)) / np.linalg.norm(small)
    assert f"loses {100 * lost:.2g} %" in unfit_reason(small, "fp16")
    assert unfit_reason(np.concatenate([small, values()]), "fp16") == ""


@pytest.mark.parametrize("shape", [(300, 701), (5, 3), (7, 100_000), (0, 4)])
def test_matmuls_in_float64(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    vector, matrix = (rng.standard_normal(size).astype(np.float32) for size in (shape[0], shape))
    np.testing.assert_allclose(
        exact_product(vector, matrix), vector.astype(float) @ matrix.astype(float), rtol=1e-10, atol=1e-12
    )
