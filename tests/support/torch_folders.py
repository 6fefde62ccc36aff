# SPDX-License-Identifier: Apache-2.0
"""Folders with torch weights that hold the numbers of an exported BERT."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from .folders import write_json, write_safetensors

NO_CHANGES: Mapping[str, Any] = {}


def write_torch_folder(
    source: Path,
    folder: Path,
    exported: Path,
    *,
    config: Mapping[str, Any] = NO_CHANGES,
    tokenizer: Mapping[str, Any] = NO_CHANGES,
) -> Path:
    """Copies a folder, with model.safetensors in place of its ONNX file.

    Args:
        source: a folder from `folders.write_folder`.
        folder: where to write.
        exported: the ONNX file, whose nodes have the names of torch's modules.
        config: entries to change in config.json.
        tokenizer: entries to change in tokenizer_config.json.
    """
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("onnx"))
    graph = onnx.load(str(exported)).graph
    values = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    # The file has products with constants as x W, torch has them as x W^T.
    names = {name: name for name in values if not name.startswith("onnx::")}
    products = {
        node.input[1]: node.name.strip("/").removesuffix("/MatMul").replace("/", ".") + ".weight"
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in values
    }
    tensors = {names[name]: values[name] for name in names}
    tensors |= {new: np.ascontiguousarray(values[name].T) for name, new in products.items()}
    bare = not any(name.startswith("classifier.") for name in tensors)
    write_safetensors(
        folder / "model.safetensors",
        {name.removeprefix("bert.") if bare else name: tensor for name, tensor in tensors.items()},
    )
    for name, changes in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        write_json(folder / name, {**json.loads((folder / name).read_text("utf-8")), **changes})
    return folder


def rename_input(model: onnx.ModelProto, old: str, new: str) -> None:
    """Renames an input of a model in place."""
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            if name == old:
                node.input[at] = new
    next(item for item in model.graph.input if item.name == old).name = new
