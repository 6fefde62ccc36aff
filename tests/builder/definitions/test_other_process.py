# SPDX-License-Identifier: Apache-2.0
"""A folder is prepared for TensorRT by another process, with its files mapped, as in `padfree build`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from padfree.builder.engine.options import BuildOptions
from padfree.builder.engine.preparation_process import preparing
from padfree.builder.folders.source import opened

from tests.support import tiny_folders


@pytest.mark.parametrize("name", ["bert", pytest.param("bert_bfloat16", marks=pytest.mark.slow)])
def test_another_process_prepares_the_same_model(name: str, tmp_path: Path) -> None:
    folder = tiny_folders.write_reference(tiny_folders.read(name), tmp_path)
    options = BuildOptions("packed", "fp32", strict=True, verify=False, linear="tensorrt", norms="separate")
    with opened(folder, lazily=True) as source:
        assert source.unmade is not None
        assert not source.unmade.exports  # nothing waits for torch
        with preparing(source.unmade, options, lambda: None) as wait:
            result = wait()
    assert result.content is not None
    model = onnx.load_model_from_string(bytes(result.content))
    results = [numpy_helper.to_array(item) for item in model.graph.initializer]
    table = tiny_folders.draw("embeddings.word_embeddings.weight", (64, 16))
    table = table.astype(tiny_folders.DTYPES[tiny_folders.read(name).dtype]).astype(np.float32)
    assert any(array.shape == table.shape and np.array_equal(array, table) for array in results)
