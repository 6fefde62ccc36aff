# SPDX-License-Identifier: Apache-2.0
"""Weights are read one after the other into the same memory, and those that were read before keep their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder import BuildError
from padfree.builder.definitions.tensors import Tensors

from tests.support.safetensors_files import write_tensors

SHAPES = ((5, 7), (1, 35), (35, 1), (7, 5), (64, 3), (3, 64), (130, 5))  # transposed 64 rows at a time


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("way", ["plain", "transposed", "interleaved", "shifted"])
def test_weights_keep_their_numbers(way: str, dtype: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    stored = {str(number): rng.standard_normal(shape).astype(dtype) for number, shape in enumerate(SHAPES)}
    stored["rotations"] = rng.standard_normal((12, 4)).astype(dtype)
    file = write_tensors(tmp_path / "model.safetensors", stored)
    tensors = Tensors([file])
    found: list[npt.NDArray[np.float32]] = []
    wanted: list[npt.NDArray[np.float32]] = []
    for name, values in stored.items():
        weight, right = tensors.take(name, *values.shape), values.astype(np.float32)
        if way == "transposed":
            weight, right = weight.transpose(), right.T
        elif way == "shifted":
            weight, right = weight.transpose().shift(1.0), right.T + np.float32(1)
        elif way == "interleaved" and name == "rotations":
            weight, right = weight.interleave(2, 3, 1), np.concatenate([right[2:4], right[8:10]])
        found.append(weight.read({file: None}))
        wanted.append(right)
        if weight.is_exact():
            narrow = weight.read_narrow({file: None})
            found.append(narrow.view(dtype).astype(np.float32))
            wanted.append(right)
    for read, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(read, right)


def test_an_end_that_is_missing(tmp_path: Path) -> None:
    file = write_tensors(tmp_path / "model.safetensors", {"w": np.ones((4, 4), np.float32)})
    weight = Tensors([file]).take("w", 4, 4)
    file.write_bytes(file.read_bytes()[:-8])
    for way in (weight, weight.transpose()):
        with pytest.raises(BuildError, match="its end is missing; download the model again"):
            way.read({file: None})
