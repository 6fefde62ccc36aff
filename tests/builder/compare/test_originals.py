# SPDX-License-Identifier: Apache-2.0
"""Originals as exporters write them: small constants in data files, and sequences longer than they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.builder import gpu_files
from padfree.builder.cli import main
from padfree.onnx_tools.synthetic import bert_model

POSITIONS = 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A BERT with a mean over E, whose axes are a constant of 8 bytes in the data file, as optimum names it."""
    result = bert_model(1, 32, 4, 64, max_positions=POSITIONS)
    result.graph.initializer.append(numpy_helper.from_array(np.asarray([2]), "axes_of_sum"))
    node = helper.make_node("ReduceSum", [result.graph.output[0].name, "axes_of_sum"], ["sums"], keepdims=0)
    result.graph.node.append(node)
    del result.graph.output[:]
    result.graph.output.append(helper.make_tensor_value_info("sums", TensorProto.FLOAT, ["batch", "sequence"]))
    path = tmp_path / "model.onnx"
    onnx.save_model(result, path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    return path


def test_constants_that_tell_shapes_may_lie_in_the_data_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = model.with_name("packed.onnx")
    assert main(["optimize", str(model), "-o", str(packed)]) == 0
    assert main(["compare", str(model), str(packed)]) == 0
    assert "PASSED" in capsys.readouterr().out
    for files in ([str(packed)], []):
        assert main(["compare", str(packed), *files]) == 1
        assert (
            f"{packed}: has been rewritten, and the first model is the original: padfree compare ORIGINAL packed.onnx"
            in (capsys.readouterr().err)
        )
    assert main(["optimize", str(packed), "-o", str(packed.with_name("again.onnx"))]) == 1
    assert f"'{packed}' holds operators of the domain 'padfree' already: it has been" in capsys.readouterr().err


def test_sequences_that_an_original_does_not_take_are_named(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(model), str(model)]) == 1
    error = capsys.readouterr().err
    assert "fails on a batch of" in error
    assert "--max-seq-len" in error
    assert "PADFREE_DEBUG" not in error
    assert main(["compare", str(model), str(model), "--max-seq-len", str(POSITIONS)]) == 0


def test_engines_are_refused_at_once_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_files, "DEVICE_FILES", ())
    for runner in ("trt", "trt-padded"):
        assert main(["compare", str(tmp_path / "nowhere.onnx"), "--runners", f"onnxrt,{runner}"]) == 1
        error = capsys.readouterr().err
        assert f"--runners {runner}: engines run on a GPU, and this machine shows no NVIDIA GPU" in error
        assert "nowhere" not in error, "before anything is read"
