# SPDX-License-Identifier: Apache-2.0
"""The small model that tests quantise, and a packed batch for it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from padfree.onnx_tools.synthetic import bert_model

FEEDS = {
    "input_ids": np.random.default_rng(0).integers(0, 50, 12).astype(np.int32),
    "token_type_ids": np.zeros(12, np.int32),
    "seq_lens": np.array([5, 7], np.int32),
}


@pytest.fixture(scope="module")
def original() -> ModelProto:
    return bert_model(1, 64, 2, 128, 50, 32)
