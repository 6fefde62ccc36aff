# SPDX-License-Identifier: Apache-2.0
"""docs/guide/serving.md: its commands and clients run against a folder on the CPU, and its tables are the program's."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli
from padfree.contract.texts import PAIRS, TextInfo

from tests.support.folders import TOKENIZER, write_folder
from tests.support.http_requests import get, post
from tests.support.pages import page
from tests.support.served_models import Server, write_model

Limits = pytest.importorskip("padfree.serving").Limits
pytest.importorskip("langchain_openai")

PAGE = page("serving").read_text("utf-8")
ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://127.0.0.1:8080"


def blocks(language: str) -> str:
    return "".join(re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


COMMANDS = [shlex.split(line) for line in blocks("sh").splitlines()]
SERVERS = [words for words in COMMANDS if words[0] == "padfree"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that the page starts, with a small folder instead of bge-small."""
    command, _ = SERVERS
    folder = tmp_path_factory.mktemp("page") / command[2]
    modules = [("Pooling", {"pooling_mode_cls_token": True}), ("Normalize", {})]
    write_folder(folder, modules=modules)
    with Server(folder, "--processes", "1", *command[5:]) as actual:
        yield actual


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The page's second server, with a model that scores pairs."""
    text = TextInfo(PAIRS, hashlib.sha256(TOKENIZER.read_bytes()).hexdigest(), activation="sigmoid")
    file = write_model(tmp_path_factory.mktemp("page") / "reranker.onnx", "scores", 1, text.to_dict())
    with Server(file, "--processes", "1") as actual:
        yield actual


def test_curl_gets_answers(server: Server, reranker: Server) -> None:
    curls = [words for words in COMMANDS if words[0] == "curl"]
    assert len(curls) == 5
    assert [command[3:5] for command in SERVERS] == [["--port", "8080"], ["--port", "8081"]]
    for words in curls:
        address, path = words[2][: len(ADDRESS)], words[2][len(ADDRESS) :]
        asked = {ADDRESS: server, ADDRESS.replace("8080", "8081"): reranker}[address]
        if "-d" not in words:
            assert get(asked, path)[0] == 200
            continue
        status, answer = post(asked, path, **json.loads(words[words.index("-d") + 1]))
        assert status == 200, answer


def test_python_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    for source in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(source.replace(ADDRESS, server.url), "docs/guide/serving.md", "exec"), scope)
    first, second = capsys.readouterr().out.split("\n")[:2]
    assert first.startswith("2 ")
    assert second == "64"


def test_limits_are_those_of_the_program() -> None:
    arguments = cli.make_parser().parse_args(["serve", "model.plan"])
    rows = dict(re.findall(r"^\| `--([\w-]+)` \| ([\d,]+(?: MiB)?) \|", PAGE, re.MULTILINE))
    shown = {
        name: int(text.removesuffix(" MiB").replace(",", "")) << (20 * ("MiB" in text)) for name, text in rows.items()
    }
    assert len(shown) == len(dataclasses.fields(Limits))
    assert shown == {name: getattr(arguments, name.replace("-", "_")) for name in shown}
    assert sorted(shown.values()) == sorted(getattr(Limits(), field.name) for field in dataclasses.fields(Limits))
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--" + name for name in shown} <= set(options()) | {"--pooling"}


def options() -> list[str]:
    parsers = cli.make_parser()._subparsers
    assert parsers is not None
    choices: dict[str, Any] = parsers._group_actions[0].choices  # type: ignore[assignment]
    return list(choices["serve"]._option_string_actions)


def test_routes_are_those_of_the_program(server: Server) -> None:
    routes = re.findall(r"^\| `(GET|POST) (\S+?)`(?:, `(/\S+?)`)?(?:, `(/\S+?)`)? \|", PAGE, re.MULTILINE)
    paths = [(method, path) for method, *listed in routes for path in listed if path]
    assert {path for _, path in paths} > {"/v1/embeddings", "/v2/rerank", "/embed_sparse", "/metrics", "/"}
    for method, path in paths:
        status = get(server, path)[0] if method == "GET" else post(server, path)[0]
        assert status == (200 if method == "GET" else 422), path


def test_lines_of_the_log_are_the_program_s() -> None:
    table = PAGE.partition("The log has these lines")[2].partition("## ")[0]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    source = "".join(file.read_text("utf-8") for file in (ROOT / "serving").rglob("*.py"))
    source = source.replace("{'s' * (count != 1)}", "s").replace("their {end}", "their ends")
    assert len(lines) > 4
    for line in lines:
        parts = re.split(r"\b[A-Z]+\b|\b5\b| (?=and is started again)", line)
        for part in (part.strip(" ()").removeprefix("s ") for part in parts):
            assert part in source, part
