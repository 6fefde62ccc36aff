# SPDX-License-Identifier: Apache-2.0
"""A server whose Python has nothing of padfree but what padfree.tar holds, as in the image, without Docker."""

from __future__ import annotations

import os
import tarfile
import venv
from pathlib import Path

import pytest
from padfree.runtime import Session
from tokenizers import Tokenizer

from tests.support.triton_server import TritonServer

from .calls import call, texts
from .served_kinds import OUTPUTS, TOKENIZER, assert_right

pytestmark = pytest.mark.needs_triton

TEXT = "a short text"


def test_the_archive_is_enough(installed: Path, repository: Path, session: Session, tmp_path: Path) -> None:
    with tarfile.open(repository / "padfree.tar") as tar:
        tar.extractall(tmp_path / "opt", filter="data")
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    site = next(environment.glob("lib/python*/site-packages"))
    site.joinpath("padfree.pth").write_text(f"{tmp_path / 'opt'}\n{installed / 'packages'}\n")
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    with TritonServer(installed, [repository], tmp_path, environment={"PATH": path}) as server:
        answer = call(server, "http", "bert_text", {"text": texts(TEXT)}, OUTPUTS)
    encoding = Tokenizer.from_file(str(TOKENIZER)).encode(TEXT)
    assert_right(answer, [encoding.ids], session, [encoding.type_ids])
