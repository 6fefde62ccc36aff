# SPDX-License-Identifier: Apache-2.0
"""Which files of a repository a model is made of, by their names: never code, and no weights twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

from .onnx_files import choose_onnx
from .weights import INDEX, PICKLES, WEIGHTS

SETTINGS = (
    "added_tokens.json", "artifact.metadata", "bpe.codes", "chat_template.jinja", "config.json",
    "config_sentence_transformers.json", "merges.txt", "modules.json", "sentence_*_config.json",
    "sentencepiece.bpe.model", "special_tokens_map.json", "spiece.model", "spm.model", "tokenizer.json",
    "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", INDEX,
)  # fmt: skip
"""Files of a model's folder that are small and hold no weights, as patterns of names."""


def settings_of(names: Collection[str], folder: str = "") -> list[str]:
    """The files of a folder that say what the model is and how texts are read."""
    encoder = PurePosixPath(folder)
    paths = [PurePosixPath(name) for name in sorted(names)]
    return [str(path) for path in paths if path.parent == encoder and any(path.match(pattern) for pattern in SETTINGS)]


def module_files(names: Collection[str], folders: Sequence[str]) -> list[str]:
    """The settings and weights of the modules that modules.json lists after the encoder."""
    candidates = [f"{folder}/{name}" for folder in folders if folder for name in ("config.json", WEIGHTS)]
    return [name for name in candidates if name in names]


def weights_of(names: Collection[str], folder: str, index: Mapping[str, str]) -> list[str]:
    """The files with the encoder's weights: safetensors, or otherwise an ONNX file with its external data.

    Args:
        names: all files of the repository.
        folder: where the encoder lies in it; "" for the top.
        index: the `weight_map` of the index of parts, where there is one.

    Returns:
        Their names, some of which may not be among `names`: parts that are missing. Empty: there are none.
    """
    encoder = PurePosixPath(folder)
    if str(encoder / WEIGHTS) in names:
        return [str(encoder / WEIGHTS)]
    if index:
        return [str(encoder / part) for part in sorted(set(index.values()))]
    return onnx_of(names, folder)


def onnx_of(names: Collection[str], folder: str) -> list[str]:
    """The ONNX file to take of those in an encoder's folder, or beside it, with its external data; [] for none."""
    encoder = PurePosixPath(folder)
    inside = [PurePosixPath(name) for name in sorted(names)]
    onnx_path = choose_onnx(
        [path for path in inside if path.parent in (encoder, encoder / "onnx", PurePosixPath("onnx"))]
    )[0]
    if not onnx_path:
        return []
    return [
        str(path) for path in inside if path.parent == onnx_path[0].parent and path.name.startswith(onnx_path[0].name)
    ]


def pickles_of(names: Collection[str]) -> list[str]:
    """Files with weights that padfree does not load, as doing so may run code."""
    return [name for name in sorted(names) if any(PurePosixPath(name).match(pattern) for pattern in PICKLES)]
