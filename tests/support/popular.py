# SPDX-License-Identifier: Apache-2.0
"""Popular folders at tiny sizes, with the hub's entries and names of tensors, and what padfree makes of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder
from padfree.builder.folders.source import opened
from padfree.contract.phases import Phases
from padfree.onnx_tools.files.weights import Storage
from padfree.onnx_tools.operators import node_attributes, padfree_nodes
from padfree.onnx_tools.options import RewriteOptions
from padfree.onnx_tools.rewrite import rewrite_model
from tokenizers import Tokenizer, models

from . import tiny_folders
from .folders import write_json
from .safetensors_files import write_tensors

FOLDERS: tuple[Mapping[str, Any], ...] = tuple(
    json.loads((tiny_folders.FOLDER.parent / "popular_folders.json").read_text("utf-8"))
)
_KIND = "sentence_transformers.models"
_LARGEST_HEAD = 128
"""The largest head size of the attention kernels for Hopper."""


def write_entry(entry: Mapping[str, Any], path: Path) -> Path:
    """Writes the folder, under its name, with sentence-transformers' modules if it has any.

    It has a tokenizer if the model's scores are those of answers, or if every token has a vector.
    """
    path = path / entry["folder"]
    if entry["config"] is not None:
        write_json(path / "config.json", entry["config"])
    tensors = {name: tiny_folders.draw(name, tuple(shape)) for name, shape in entry["tensors"].items()}
    write_tensors(path / "model.safetensors", tensors)
    if "answers" in entry:
        words = {word: number for number, word in enumerate(["[UNK]", *entry["answers"]])}
        write_json(path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
        Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(path / "tokenizer.json"))
    pooling = entry["pooling"]
    if pooling == "splade":
        _write_modules(path, ("", f"{_KIND}.MLMTransformer"), ("1_SpladePooling", f"{_KIND}.SpladePooling"))
        write_json(path / "1_SpladePooling" / "config.json", {"pooling_strategy": "max"})
    elif pooling:
        _write_modules(path, ("", entry.get("encoder", f"{_KIND}.Transformer")), ("1_Pooling", f"{_KIND}.Pooling"))
        write_json(path / "1_Pooling" / "config.json", {"pooling_mode": pooling})
    elif "dense" in entry:
        _write_modules(path, ("", f"{_KIND}.Transformer"), ("1_Dense", entry["dense"]))
        _write_projection(path / "1_Dense", entry["config"]["hidden_size"])
    if "late" in entry:
        _write_markers(path, entry["late"], is_pylate="dense" in entry)
    return path


def _write_projection(path: Path, width: int) -> None:
    """PyLate's Dense after rows of this width."""
    write_json(path / "config.json", {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"})
    write_tensors(path / "model.safetensors", {"linear.weight": tiny_folders.draw("linear.weight", (128, width))})


def _write_markers(path: Path, settings: Mapping[str, Any], *, is_pylate: bool) -> None:
    """How queries and documents are read, and a tokenizer with the tokens that this needs."""
    write_json(path / ("config_sentence_transformers.json" if is_pylate else "artifact.metadata"), settings)
    marks = ("[Q] ", "[D] ") if is_pylate else ("[unused0]", "[unused1]")
    words = {word: number for number, word in enumerate(("[UNK]", "[MASK]", *marks))}
    write_json(path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"})
    Tokenizer(models.WordLevel(words, unk_token="[UNK]")).save(str(path / "tokenizer.json"))


def _write_modules(path: Path, *listed: tuple[str, str]) -> None:
    modules = [
        {"idx": number, "name": str(number), "path": location, "type": kind}
        for number, (location, kind) in enumerate(listed)
    ]
    write_json(path / "modules.json", modules)


@dataclass(frozen=True)
class Outcome:
    """What padfree makes of a folder.

    Attributes:
        family: the definition's name.
        gives: the names of its outputs.
        is_complete: whether everything is packed.
        attention: the class of its attentions: A, B or C.
        has_experts: whether the model has experts, all of which are computed, chosen by the router or not.
    """

    family: str
    gives: tuple[str, ...]
    is_complete: bool
    attention: str
    has_experts: bool


def outcome(entry: Mapping[str, Any], path: Path) -> Outcome:
    """Writes and rewrites a folder, as `padfree optimize` does.

    Raises:
        NotDefinedError, BuildError: the folder is refused.
    """
    folder = write_entry(entry, path)
    family = write_defined(read_folder(folder)).name
    with opened(folder, lazily=True) as source:
        model = source.open(Storage.MEMORY, Phases(), lambda _: None)
        rewritten = rewrite_model(model, RewriteOptions(verify=False))
    graph = rewritten.model.proto.graph
    attentions = [node_attributes(node) for node in padfree_nodes(graph) if node.op_type == "PadfreeAttention"]
    return Outcome(
        family,
        tuple(item.name for item in graph.output),
        rewritten.report.complete,
        max(_class_of(item, entry["head_size"]) for item in attentions),
        bool(entry["config"].get("num_experts")),
    )


def _class_of(attention: Mapping[str, Any], head_size: int) -> str:
    """A: full or causal, heads of up to 128; B: windows, biases by distance, larger heads; C: disentangled biases."""
    if attention["bias"] == "disentangled":
        return "C"
    has_window = attention["window_left"] >= 0 or attention["window_right"] > 0
    return "B" if has_window or attention["bias"] != "none" or head_size > _LARGEST_HEAD else "A"
