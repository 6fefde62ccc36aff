# SPDX-License-Identifier: Apache-2.0
"""docs/guide/triton.md: its commands run as far as a CPU allows; its tables are the program's."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.triton.releases import RELEASES
from padfree.runtime.triton.parameters import PREFIX, EncoderParameters, TokenizerParameters

from tests.support.pages import text

pytest.importorskip("tritonclient.grpc")

PlanWriter = Callable[..., Path]

DEMO_VOCABULARY = 930
PAGE = text("triton", "triton-repositories", "triton-backend")
COMMANDS = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)).splitlines()


def commands(start: str) -> list[str]:
    return [command for command in COMMANDS if command.startswith(start)]


@pytest.fixture
def folder(tmp_path: Path, packed_metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an exported model and its tokenizer, which also fits the plans that tests write there."""
    packed_metadata["inputs"][0]["limit"] = DEMO_VOCABULARY
    shutil.copy(DEMO_DATA / "bert_tiny.onnx", tmp_path / "model.onnx")
    shutil.copy(DEMO_DATA / "tokenizer.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_in_five_commands(folder: Path, write_plan: PlanWriter, capsys: pytest.CaptureFixture[str]) -> None:
    first = [command.split()[0] for command in COMMANDS[:5]]
    assert first == ["pip", "padfree", "padfree", "docker", "docker"]
    command, *_ = commands("padfree triton model.plan")
    release = command.split("--server ")[1].split()[0]
    # `padfree build` itself needs a GPU
    assert write_plan(tensorrt=str(RELEASES[release])) == folder / "model.plan"
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out.splitlines()
    for docker in commands("docker"):
        assert docker.replace('"$PWD/repository"', str(folder / "repository")) in printed
    assert f"FROM nvcr.io/nvidia/tritonserver:{release}-py3" in (folder / "repository" / "Dockerfile").read_text()
    assert f"tensorrt=={RELEASES[release]}.*" in COMMANDS[0]


def serve_on_the_cpu(folder: Path) -> Path:
    for start in ("padfree optimize", "padfree triton packed.onnx"):
        (command,) = commands(start)
        assert main(shlex.split(command)[1:]) == 0
    return folder / "repository"


@pytest.mark.needs_triton
def test_the_requests(folder: Path) -> None:
    from tests.support.triton_server import TritonServer

    (curl,) = commands("curl")
    (example,) = re.findall(r"^```python\n(.*?)^```", text("triton"), re.M | re.S)
    with TritonServer(Path(os.environ["PADFREE_TRITON"]), [serve_on_the_cpu(folder)], folder) as server:
        words = shlex.split(curl)
        url = "http://" + words[2].replace("localhost:8000", server.url("http"))
        with urllib.request.urlopen(urllib.request.Request(url, words[words.index("-d") + 1].encode())) as reply:
            outputs = {item["name"]: item["shape"] for item in json.load(reply)["outputs"]}
        rows = {"last_hidden_state": [1, 5, 64], "pooler_output": [1, 64]}
        assert outputs == {**rows, "seq_lens": [1, 1], "truncated": [1, 1]}
        scope: dict[str, Any] = {}
        exec(compile(example.replace("localhost:8000", server.url("http")), "docs/guide/triton.md", "exec"), scope)
        assert scope["hidden"].shape == (2, 4, 64)
        assert scope["pooled"].shape == (2, 64)
        scope["client"].close()


def test_every_field_is_explained(folder: Path, write_plan: PlanWriter, packed_metadata: dict[str, Any]) -> None:
    from padfree.builder.triton.config import read_text

    longest = {"name": "max_seqlen", "role": "max_seqlen", "limit": None, "dtype": "int32"}
    command, *_ = commands("padfree triton model.plan")
    release = command.split("--server ")[1].split()[0]
    write_plan(tensorrt=str(RELEASES[release]), inputs=[*packed_metadata["inputs"], longest])
    assert main([*shlex.split(command)[1:], "--backend", "tensorrt"]) == 0
    config = read_text(folder / "repository" / "bert" / "config.pbtxt")
    explained = set(
        re.findall(r"`(\w+)", " ".join(line.split("|")[1] for line in PAGE.splitlines() if line[:1] == "|"))
    )
    assert {item.name for item, _ in config.ListFields()} - explained == {"name"}
    assert {f"{kind}" for kind in re.findall(r"BATCH_\w+", str(config))} <= set(re.findall(r"BATCH_\w+", PAGE))


def test_every_parameter_is_explained() -> None:
    for parameters in (EncoderParameters, TokenizerParameters):
        for name in parameters.__dataclass_fields__:
            assert name == "tokenizer" or f"`{PREFIX}{name}`" in PAGE


def test_every_metric_is_explained() -> None:
    source = (Path(__file__).resolve().parents[2] / "runtime" / "triton" / "metrics.py").read_text("utf-8")
    metrics = set(re.findall(r'"(padfree_\w+)": "', source))
    assert len(metrics) == 12
    assert metrics <= set(re.findall(r"`(padfree_\w+)`", PAGE))


def test_the_versions_are_the_programs() -> None:
    rows = re.findall(r"^\| (\d\d\.\d\d(?:, \d\d\.\d\d)*) \| (\d+\.\d+\.\d+) \| [\w, ]+ \|$", PAGE, re.M)
    assert {release: version for releases, version in rows for release in releases.split(", ")} == dict(RELEASES)
