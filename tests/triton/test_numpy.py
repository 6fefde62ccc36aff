# SPDX-License-Identifier: Apache-2.0
"""With a NumPy that the server's Python backend was not compiled for, the model does not load, and says why."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.triton import ServingOptions, write_repository

from tests.support import triton_server

from .served_kinds import TOKENIZER

pytestmark = pytest.mark.needs_triton


@pytest.mark.skipif(np.__version__ < "2", reason="needs NumPy 2 here, to hand it to the server's Python")
def test_a_newer_numpy(installed: Path, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    own = Path(np.__file__).parent
    for folder in (own, own.with_name("numpy.libs")):
        if folder.exists():
            (newer / folder.name).symlink_to(folder)
    environment = triton_server.python_environment

    def with_newer(folder: Path, packages: Sequence[Path]) -> Path:
        return environment(folder, [newer, *packages])

    monkeypatch.setattr(triton_server, "python_environment", with_newer)
    options = ServingOptions("bert", tokenizer=TOKENIZER, max_length=16)
    repository = write_repository(model_file, tmp_path / "repository", options).folder
    with triton_server.TritonServer(installed, [repository], tmp_path, "--model-control-mode=explicit") as server:
        for model in ("bert", "bert_tokenizer"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                server.post(f"v2/repository/models/{model}/load")
            message = refused.value.read().decode()
            assert re.search(r"backend cannot read arrays of NumPy 2\.\S+, with which every answer would", message)
            assert "pip3 install 'numpy>=1.26,<2'" in message
