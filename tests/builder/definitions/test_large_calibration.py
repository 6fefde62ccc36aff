# SPDX-License-Identifier: Apache-2.0
"""fp8 calibration of models whose weights do not fit into memory: part by part, with the scales of one session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder
from padfree.onnx_tools import quantize_gemms
from padfree.onnx_tools.files import Model, Storage, read_metadata, staged_session
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.quantization import losses
from padfree.onnx_tools.rewrite import rewrite_model

from tests.support import tiny_folders


def quantization_of(model: Model) -> Any:
    return read_metadata(model.proto)["quantization"]


def calibrate(folder: Path, storage: Storage) -> Model:
    reference = tiny_folders.read("qwen3_bfloat16")
    if not folder.exists():
        tiny_folders.write_reference(reference, folder)
    model = write_defined(read_folder(folder)).model(storage)
    packed = rewrite_model(model, RewriteOptions(precision="bf16", verify=False)).model
    lengths = np.asarray([7, 1, 12], np.int32)
    ids = np.random.default_rng(0).integers(3, 50, lengths.sum()).astype(np.int32)
    feeds = {"input_ids": ids, "seq_lens": lengths, "max_seqlen": np.zeros(12, np.int32)}
    names = {item.name for item in packed.proto.graph.input}
    return quantize_gemms(packed, [{name: value for name, value in feeds.items() if name in names}], verify=False)


@pytest.mark.slow
def test_scales_and_losses_are_those_of_one_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    wanted = quantization_of(calibrate(tmp_path / "model", Storage.MEMORY))
    request.getfixturevalue("large")
    monkeypatch.setattr(losses, "TENSORS_AT_ONCE", 1)  # would mean one run of all parts per tensor
    runs = list[int]()
    each = staged_session.StagedSession.each

    def count_parts(self: staged_session.StagedSession, *arguments: Any) -> Any:
        runs.append(self.parts)
        return each(self, *arguments)

    monkeypatch.setattr(staged_session.StagedSession, "each", count_parts)
    result = quantization_of(calibrate(tmp_path / "model", Storage.MAP))
    assert len(runs) == 2  # the largest numbers of the batch, and the losses
    assert min(runs) > 5
    assert result == wanted
