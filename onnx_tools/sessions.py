# SPDX-License-Identifier: Apache-2.0
"""Opens models in onnxruntime on the CPU, whatever their size."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnxruntime as ort
from onnx import ModelProto

from .model_file import EXTERNAL_DATA_BYTES, model_tensors, raw_bytes, save_model

SILENT = 4  # onnxruntime's log: what goes wrong comes as an exception, too


def open_session(model: ModelProto, *, optimize: bool = True) -> ort.InferenceSession:
    """A session on the CPU; models beyond protobuf's limit go through a file.

    Without `optimize` no node is fused or moved: every tensor is computed as the graph says. Raises what onnxruntime
    raises; its exceptions share no base class.
    """
    options = ort.SessionOptions()
    options.log_severity_level = SILENT
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    if sum(raw_bytes(tensor) for tensor in model_tensors(model.graph)) <= EXTERNAL_DATA_BYTES:
        return ort.InferenceSession(model.SerializeToString(), options, providers=providers)
    with tempfile.TemporaryDirectory(prefix="padfree-") as folder:
        path = Path(folder) / "model.onnx"
        save_model(model, path)
        return ort.InferenceSession(str(path), options, providers=providers)
