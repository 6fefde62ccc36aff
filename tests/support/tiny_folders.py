# SPDX-License-Identifier: Apache-2.0
"""Tiny folders for definitions: config.json and weights drawn by name, with the answers that transformers gave.

Weights are not stored: the same name and shape always give the same ones.
"""

from __future__ import annotations

import functools
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from padfree.builder.definitions.model import DefinedModel
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder

from .folders import write_json
from .safetensors_files import write_tensors

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "definitions"
REQUESTS: tuple[tuple[int, ...], ...] = ((5, 17, 30, 8, 41, 11, 59, 23, 6), (44,), (12, 12, 35, 9))
TYPES: tuple[tuple[int, ...], ...] = ((0, 0, 0, 0, 1, 1, 1, 1, 1), (0,), (0, 1, 1, 1))
DTYPES: Mapping[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Reference:
    """One tiny model and its answers.

    Attributes:
        name: that of its file.
        config: config.json.
        tensors: names and shapes.
        dtype: of all of them.
        takes_types: whether token types are given.
        outputs: by name, the answer for every request alone.
        source: what made the answers.
        adapter: the adapter that was added.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    dtype: str
    takes_types: bool
    outputs: Mapping[str, tuple[npt.NDArray[np.float32], ...]]
    source: str
    adapter: str = ""


def padding_of(reference: Reference) -> int | None:
    """The id that padding must have, if the model looks for it; None if padding may hold anything."""
    return reference.config["pad_token_id"] if "score.weight" in reference.tensors else None


def names() -> list[str]:
    """The names of all references."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


_CHOSEN: Mapping[str, str] = {
    "eurobert": "eurobert_wide",
    "jinareranker": "jinareranker_classes",
    "llama": "llama_wide_heads",
    "mistral": "mistral_wide_heads",
    "qwen2": "qwen2_wide",
}
"""Other references of families whose plain ones have heads of 4 numbers, where kernels take multiples of 8, or one
number per text, of which no relative error can be told."""


def families() -> Mapping[str, str]:
    """For every family, the name of its plain form, or of another that suits engines."""
    parts = {name.split("_")[0] for name in names()} - {"jina", "xlm"} | {"jina_v2", "xlm_roberta", "nomic_experts"}
    return {
        family: _CHOSEN.get(family, min(name for name in names() if name == family or name.startswith(f"{family}_")))
        for family in sorted(parts)
    }


@functools.cache
def read(name: str) -> Reference:
    """Reads a reference that make_definitions.py wrote."""
    raw = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    outputs = {
        key: tuple(np.asarray(rows, np.float32) for rows in actual) for key, actual in raw.pop("outputs").items()
    }
    tensors = {key: tuple(shape) for key, shape in raw.pop("tensors").items()}
    return Reference(
        name, raw["config"], tensors, raw["dtype"], raw["takes_types"], outputs, raw["source"], raw["adapter"]
    )


def draw(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Draws a tensor's numbers, such that sums of products, and scales of norms, stay near 1."""
    numbers = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) > 1:
        spread = 0.8 if "embed" in name else 1.3 / math.sqrt(shape[-1])
        return (spread * numbers).astype(np.float32)
    center = 1.0 if name.endswith(("weight", "gamma")) else 0.0
    return (center + 0.2 * numbers).astype(np.float32)


def write_reference(reference: Reference, folder: Path) -> Path:
    """Writes the folder of a reference."""
    write_json(folder / "config.json", reference.config)
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if reference.takes_types else [])]
    write_json(folder / "tokenizer_config.json", {"model_input_names": inputs})
    values = {name: draw(name, shape).astype(DTYPES[reference.dtype]) for name, shape in reference.tensors.items()}
    write_tensors(folder / "model.safetensors", values)
    return folder


def define(name: str, folder: Path) -> DefinedModel:
    """The model that padfree's definition writes of a reference's folder."""
    reference = read(name)
    return write_defined(read_folder(write_reference(reference, folder)), adapter=reference.adapter)


def pad(padding: int | None = None) -> dict[str, npt.NDArray[np.int64]]:
    """All requests as one batch, padded with the id of padding, or with random ids."""
    longest = max(map(len, REQUESTS))
    ids = np.random.RandomState(0).randint(5, 60, (len(REQUESTS), longest)).astype(np.int64)
    ids = ids if padding is None else np.full_like(ids, padding)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, (tokens, kinds) in enumerate(zip(REQUESTS, TYPES, strict=True)):
        ids[row, : len(tokens)], types[row, : len(tokens)], mask[row, : len(tokens)] = tokens, kinds, 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
