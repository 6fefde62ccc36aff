# SPDX-License-Identifier: Apache-2.0
"""Which ONNX file of a folder is the model: of several, the one in full precision, as it was exported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeVar

from onnx import ModelProto

QUANTIZED_NAME = re.compile(r"quant|u?int[48]|(^|[_-])q[48]|bnb4|fp8|nf4", re.IGNORECASE)
HALF_NAME = re.compile(r"fp16|float16|bf16|half|(^|[_-])O4", re.IGNORECASE)
OPTIMIZED_NAME = re.compile(r"(^|[_-])O[123]|optimi[sz]ed", re.IGNORECASE)
DECODER_NAME = re.compile(r"decoder", re.IGNORECASE)
QUANTIZED_OPERATORS = re.compile(
    r"QLinear|Dequantize|DynamicQuantize|MatMulInteger|ConvInteger|MatMulNBits|MatMulBnb4|QAttention"
)
_FOLDERS = ("onnx", "")
AnyPath = TypeVar("AnyPath", bound=PurePath)


@dataclass(frozen=True)
class OnnxFiles:
    """What a folder has: the file to take, None where there is none; others; and those that are quantised."""

    choice: Path | None
    others: tuple[Path, ...]
    quantized: tuple[Path, ...]


def find_onnx(*folders: Path) -> OnnxFiles:
    """Looks for ONNX files in folders and in their folders `onnx`."""
    onnx_folders = dict.fromkeys(folder / name for folder in folders for name in _FOLDERS)
    files = [path for onnx_folder in onnx_folders for path in sorted(onnx_folder.glob("*.onnx")) if path.is_file()]
    whole, quantized = choose_onnx(files)
    return OnnxFiles(whole[0] if whole else None, tuple(whole[1:]), tuple(quantized))


def choose_onnx(files: Sequence[AnyPath]) -> tuple[list[AnyPath], list[AnyPath]]:
    """The files in full or half precision, the best one first, and the quantised ones; told by their names."""
    files = [path for path in files if path.suffix.lower() == ".onnx" and not DECODER_NAME.search(path.stem)]
    quantized = [path for path in files if QUANTIZED_NAME.search(path.stem)]
    return sorted((path for path in files if path not in quantized), key=_rank), quantized


def _rank(path: PurePath) -> tuple[int, int]:
    """The lower the better: model.onnx, other names, files that onnxruntime optimised, half precision."""
    name = path.stem
    kind = 3 if HALF_NAME.search(name) else 2 if OPTIMIZED_NAME.search(name) else int(name != "model")
    return kind, int(path.parent.name != "onnx")


def quantized_operator(model: ModelProto) -> str | None:
    """An operator by which a model is known to be quantised; None where it is not."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    return next((node.op_type for node in nodes if QUANTIZED_OPERATORS.match(node.op_type)), None)
