# SPDX-License-Identifier: Apache-2.0
"""The server's own response cache, switched on as docs/triton.md says, where requests carry one sequence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from calls import call_all, rows
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime import Session
from served import OUTPUTS, assert_right, random_sequences
from triton_server import TritonServer

pytestmark = pytest.mark.needs_triton

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "triton.md").read_text("utf-8")
HITS = re.compile(r'^nv_cache_num_hits_per_model\{model="cached",version="1"\} (\d+)$', re.MULTILINE)


def test_a_request_that_comes_again_is_not_computed(
    server: TritonServer, session: Session, model_file: Path, other_repository: Path, tmp_path: Path
) -> None:
    (line,) = re.findall(r"^response_cache .*$", PAGE, re.MULTILINE)
    folder = write_repository(model_file, tmp_path / "repository", ServingOptions("cached")).folder / "cached"
    with (folder / "config.pbtxt").open("a") as config:
        config.write(f"{line}\n")
    folder.rename(other_repository / "cached")
    server.post("v2/repository/models/cached/load")
    requests = [[sequence] for sequence in random_sequences(10, 30)]
    for hits in (0, len(requests)):
        answers = call_all(server, "grpc", "cached", [rows(sequences) for sequences in requests], OUTPUTS)
        for answer, sequences in zip(answers, requests, strict=True):
            assert_right(answer, sequences, session)
        assert HITS.findall(server.get("metrics", "metrics")) == [str(hits)]
    server.post("v2/repository/models/cached/unload")
