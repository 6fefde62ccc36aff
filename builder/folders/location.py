# SPDX-License-Identifier: Apache-2.0
"""What a command was given as its model, as a file or folder of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from padfree.contract.data_files import SUFFIXES
from padfree.contract.file_kinds import refuse_special
from padfree.contract.names import ONNX_SUFFIX
from padfree.runtime import sidecar_path

from ..errors import BuildError
from .hub import download, is_hub_id

_FILES = (ONNX_SUFFIX, ".plan")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
_DATA = (*SUFFIXES, ".tsv", ".npy", ".md")
_GGUF = ".gguf"
_CONFIG = "config.json"
WHAT_TO_GIVE = "give a model's folder, an .onnx file or a plan"


def locate(source: str | Path, say: Callable[[str], object] = lambda _: None, *, revision: str = "") -> Path:
    """The file or folder that was given, or the folder of a repository of the Hugging Face Hub.

    Missing files with a model's suffix, `.onnx` or `.plan`, are returned: whoever reads them says what is wrong.

    Args:
        source: what the user named.
        say: gets a line when the hub is asked.
        revision: a branch, tag or commit of a repository; "" for the newest.

    Raises:
        BuildError: no file or folder has that name, or a file of a model's folder was given instead of the folder.
    """
    path = Path(source)
    refuse_special(path, BuildError)
    if not path.exists() and is_hub_id(path):
        say(f"{path}: looking for it on the Hugging Face Hub")
        return download(str(path), revision, say)
    if revision:
        raise BuildError(
            f"{source}: --revision {revision} is for repositories of the Hugging Face Hub, and this is none; leave it "
            "out"
        )
    if path.exists():
        check_no_part(path)
        return path
    if path.suffix.lower() in _FILES:
        return path
    raise BuildError(
        f"{source}: no such file or folder here; {WHAT_TO_GIVE}, or the whole name of a repository on the Hugging Face "
        "Hub, such as sentence-transformers/all-MiniLM-L6-v2"
    )


def check_no_part(path: Path) -> None:
    """Refuses a file of a model's folder that is no model by itself.

    Raises:
        BuildError: weights, texts and other data, a GGUF file, or a JSON file beside a config.json.
    """
    suffix, beside = path.suffix.lower(), path.parent / _CONFIG
    if not path.is_file() or sidecar_path(path).exists():  # plans may have any name
        return
    if suffix in _DATA:
        raise BuildError(f"{path}: is a data file, not a model; {WHAT_TO_GIVE}")
    if suffix == _GGUF:
        raise BuildError(
            f"{path}: is a GGUF file, which has weights without the model's graph; give the Hugging Face folder that "
            "it was made from"
        )
    if suffix in _WEIGHTS or (suffix == ".json" and beside.exists()):
        if beside.exists():
            raise BuildError(f"{path}: is a part of a model's folder; give the folder: {path.parent}")
        raise BuildError(
            f"{path}: holds weights and does not say of which model; give a folder with {_CONFIG} and the tokenizer "
            "beside the weights, an .onnx file or a plan"
        )
