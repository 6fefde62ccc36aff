# SPDX-License-Identifier: Apache-2.0
"""Triton's own response cache is switched on as the documents say, and refused if its answers would be wrong."""

from __future__ import annotations

import re
import urllib.error
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.triton import ServingOptions, write_repository
from padfree.onnx_tools import load_model, rewrite, save_model
from padfree.runtime import Session

from tests.support.pages import text
from tests.support.triton_server import TritonServer

from .calls import call_all, rows
from .served_kinds import TOKENIZER, TOLERANCE, random_sequences

pytestmark = pytest.mark.needs_triton

PAGE = text("triton-repositories", "triton-backend")
HITS = re.compile(r'^nv_cache_num_hits_per_model\{model="cached",version="1"\} (\d+)$', re.MULTILINE)


def put(model: Path, options: ServingOptions, work: Path, repository: Path, cached: str) -> None:
    """Writes a model into a server's repository, and adds the documents' line to the configuration of `cached`."""
    (line,) = re.findall(r"^response_cache .*$", PAGE, re.MULTILINE)
    written = write_repository(model, work / "repository", options)
    with (written.folder / cached / "config.pbtxt").open("a") as config:
        config.write(f"{line}\n")
    for name in written.models:
        (written.folder / name).rename(repository / name)


def test_a_request_that_comes_again_is_not_computed(
    server: TritonServer, other_repository: Path, tmp_path: Path
) -> None:
    exported = load_model(DEMO_DATA / "bert_tiny.onnx")
    pooled = next(output for output in exported.graph.output if output.name == "pooler_output")
    del exported.graph.output[:]
    exported.graph.output.append(pooled)
    save_model(rewrite(exported, verify=False).model, tmp_path / "pooled.onnx")
    put(tmp_path / "pooled.onnx", ServingOptions("cached"), tmp_path, other_repository, "cached")
    server.post("v2/repository/models/cached/load")
    sequences = random_sequences(10, 30)
    with Session(tmp_path / "pooled.onnx") as session:
        expected = session.run({"input_ids": sequences})["pooler_output"]
    for hits in (0, len(sequences)):
        answers = call_all(server, "grpc", "cached", [rows([row]) for row in sequences], ["pooler_output"])
        for answer, right in zip(answers, expected, strict=True):
            assert isinstance(answer, dict), answer
            np.testing.assert_allclose(answer["pooler_output"][0], right, atol=TOLERANCE)
        assert HITS.findall(server.get("metrics", "metrics")) == [str(hits)]
    server.post("v2/repository/models/cached/unload")


@pytest.mark.parametrize("part", ["several", "several_tokenizer"])
def test_it_is_refused_where_one_output_may_be_asked_for(
    server: TritonServer, model_file: Path, other_repository: Path, tmp_path: Path, part: str
) -> None:
    """A request for another output of the same tokens would get the first request's output."""
    name = f"{part}_cached"
    options = ServingOptions(name.replace("_tokenizer", ""), tokenizer=TOKENIZER)
    cached = f"{options.name}_tokenizer" if "tokenizer" in part else options.name
    put(model_file, options, tmp_path, other_repository, cached)
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post(f"v2/repository/models/{cached}/load")
    assert "response_cache does not go with" in refused.value.read().decode()
    for folder in other_repository.glob(f"{options.name}*"):
        folder.rename(tmp_path / folder.name)
