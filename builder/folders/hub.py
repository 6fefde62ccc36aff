# SPDX-License-Identifier: Apache-2.0
"""Repositories on the Hugging Face Hub: downloaded where it is reached, refused with the reason where it is not."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import BuildError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "onnx/model.onnx*", "model.onnx*")


def is_hub_id(source: Path) -> bool:
    """Whether a path that does not exist may be a repository's name, such as BAAI/bge-small-en-v1.5."""
    text = str(source)
    return bool(_ID.fullmatch(text)) and source.suffix.lower() not in (".onnx", ".plan") and not source.parent.is_dir()


def download(name: str) -> Path:
    """The folder of a repository, in huggingface_hub's cache.

    Raises:
        BuildError: huggingface_hub is not installed, the hub is not reached, or it has no such repository.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise BuildError(
            f"{name}: no such file or folder here, and to get it from the Hugging Face Hub needs huggingface_hub: pip "
            "install huggingface_hub, or download the repository, and give its folder"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except Exception as error:  # its errors share no public base
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise BuildError(
            f"{name}: no such file or folder here, and the Hugging Face Hub does not give it ({type(error).__name__}: "
            f"{reason}); check the name, a token for private ones (HF_TOKEN) and the network, or download the "
            "repository elsewhere, and give its folder"
        ) from error
