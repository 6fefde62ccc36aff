# SPDX-License-Identifier: Apache-2.0
"""Weights side by side: read only when somebody asks for them, in each type that they are stored in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import TensorProto
from padfree.onnx_tools.files.deferred_data import DeferredData
from padfree.onnx_tools.files.weight_columns import join_columns
from padfree.onnx_tools.files.weights import HeldValues

FIRST, SECOND = (np.random.default_rng(seed).standard_normal((6, seed)).astype(np.float32) for seed in (2, 5))


class Source:
    """A deferred weight that counts how often it is read."""

    def __init__(self, values: npt.NDArray[np.float32]) -> None:
        self.reads, self._values = 0, values
        narrow = values.astype(ml_dtypes.bfloat16).view(np.uint16)
        types = {TensorProto.BFLOAT16: DeferredData(narrow.nbytes, lambda: narrow)}
        self.data = DeferredData(values.nbytes, self._read, types)
        message = TensorProto(data_type=TensorProto.FLOAT, dims=values.shape)
        self.constant = gs.Constant(f"weight{values.shape[1]}", HeldValues(message, self.data))

    def _read(self) -> npt.NDArray[np.float32]:
        self.reads += 1
        return self._values


def test_deferred_weights_stay_deferred() -> None:
    sources = Source(FIRST), Source(SECOND)
    result = join_columns("both", [item.constant for item in sources])
    held = result._values
    assert (result.name, list(result.shape), held.nbytes) == ("both", [6, 7], 6 * 7 * 4)
    assert isinstance(held.source, DeferredData)
    assert [item.reads for item in sources] == [0, 0]
    expected = np.concatenate([FIRST, SECOND], axis=1)
    np.testing.assert_array_equal(held.load(), expected)
    assert [item.reads for item in sources] == [1, 1]
    narrow = held.source.narrow[TensorProto.BFLOAT16]
    bits = np.frombuffer(narrow.data(), np.uint16).reshape(6, 7)
    np.testing.assert_array_equal(bits, expected.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert narrow.size == 6 * 7 * 2


def test_weights_in_memory_are_joined_at_once() -> None:
    result = join_columns("both", [Source(FIRST).constant, gs.Constant("second", SECOND)])
    np.testing.assert_array_equal(result.values, np.concatenate([FIRST, SECOND], axis=1))


def test_biases_have_one_axis() -> None:
    result = join_columns("both", [gs.Constant("one", FIRST[0]), gs.Constant("other", SECOND[0])])
    np.testing.assert_array_equal(result.values, np.concatenate([FIRST[0], SECOND[0]]))
