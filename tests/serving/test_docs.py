# SPDX-License-Identifier: Apache-2.0
"""/openapi.json says what the server does: examples are answered as its schemas say; /docs needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support.classifiers import small_folder
from tests.support.http_requests import PATIENCE_S, get, post
from tests.support.served_models import TOKENIZER, Server

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema judges answers: pip install '.[test]'")

SERVERS = ("embedder", "reranker", "sparse_encoder", "classifier", "tagger")
OWN = {
    "embedder": {"/v1/embeddings", "/v1/embed", "/v2/embed", "/embed", "/similarity"},
    "reranker": {"/v1/rerank", "/v2/rerank", "/rerank", "/predict"},
    "sparse_encoder": {"/embed_sparse"},
    "classifier": {"/predict"},
    "tagger": {"/tag"},
}
OF_ALL = {"/tokenize", "/v1/models", "/info", "/health", "/metrics"}
ALIASES = {"/", "/embeddings", "/ping", "/docs", "/openapi.json"}
KEY = "a-secret"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(small_folder(tmp_path_factory.mktemp("tagger") / "ner", "token", ("O", "B-LOC"))) as server:
        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def description(server: Server) -> dict[str, Any]:
    status, document = get(server, "/openapi.json")
    assert status == 200
    return dict(document)


def check(schema: dict[str, Any], value: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


def content(response: dict[str, Any]) -> dict[str, Any]:
    return dict(response["content"]["application/json"]["schema"])


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_it_is_valid(server: Server) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="pip install openapi-spec-validator judges it")
    validator.validate(description(server))


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_its_paths_are_the_routes_that_the_model_answers(server: Server, request: pytest.FixtureRequest) -> None:
    paths = set(description(server)["paths"])
    assert paths == OWN[request.node.callspec.params["server"]] | OF_ALL
    known = get(server, "/no-such-route")[1]["error"].split("there are ")[1].split(", ")
    for path in set(known) - paths - ALIASES:
        assert post(server, path, inputs="a", input="a", query="a", texts=["a"], documents=["a"])[0] == 424, path


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_examples_are_answered_as_it_says(server: Server) -> None:
    for path, methods in description(server)["paths"].items():
        for method, operation in methods.items():
            if method == "get":
                status, answer = get(server, path)
                assert status == 200
                if "content" in operation["responses"]["200"] and path != "/metrics":
                    check(content(operation["responses"]["200"]), answer)
                continue
            body = operation["requestBody"]["content"]["application/json"]
            check(body["schema"], body["example"])
            status, answer = post(server, path, **body["example"])
            assert status == 200, answer
            check(content(operation["responses"]["200"]), answer)
            status, answer = post(server, path)
            assert status == 422
            check(content(operation["responses"]["422"]), answer)
            with pytest.raises(jsonschema.ValidationError):
                check(content(operation["responses"]["200"]), answer)


def test_fields_are_those_that_the_server_reads(embedder: Server) -> None:
    """A value of another type is refused for each field except OpenAI's `model`, which is not read."""
    for path in ("/v1/embeddings", "/embed", "/tokenize"):
        body = description(embedder)["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for name in set(body["schema"]["properties"]) - {"model"}:
            assert post(embedder, path, **{**body["example"], name: {"an": "object"}})[0] == 422, (path, name)


def test_limits_keys_and_ids_are_the_servers(embedder_file: Path) -> None:
    options = ["--max-texts", "3", "--api-key", KEY, "--accept-token-ids", "--processes", "1"]
    with Server(embedder_file, *options) as server:
        document = description(server)  # without a key
        inputs = document["paths"]["/embed"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for value, fits in (([[5, 6]], True), (["a"] * 3, True), (["a"] * 4, False)):
            assert jsonschema.Draft202012Validator(inputs).is_valid({"inputs": value}) is fits
            assert (post(server, "/embed", key=KEY, inputs=value)[0] == 200) is fits
        assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
        for path, methods in document["paths"].items():
            operation = next(iter(methods.values()))
            is_open = operation.get("security") == []
            status = get(server, path)[0] if "get" in methods else post(server, path)[0]
            assert (status == 401) is not is_open, path
            assert ("401" in operation["responses"]) is not is_open, path
        page = get(server, "/docs")[1]
        assert KEY not in page
        assert 'id="key"' in page


class _Outside(HTMLParser):
    """The addresses that a page fetches or links to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:  # a paragraph's or cell's end tag may be missing
            assert self.open


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_the_page_shows_every_route_and_needs_nothing_from_elsewhere(server: Server) -> None:
    connection = HTTPConnection(*server.address, timeout=PATIENCE_S)
    connection.request("GET", "/docs")
    answer = connection.getresponse()
    page = answer.read().decode()
    connection.close()
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    outside = _Outside()
    outside.feed(page)
    assert outside.open == []
    assert set(outside.addresses) == {"data:,", "openapi.json"}
    assert "@import" not in page
    assert "url(" not in page
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1
    allowed = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert f"script-src 'sha256-{allowed}'" in policy
    assert "default-src 'none'" in policy
    forms = re.findall(r'<form data-method="(\w+)" data-path="([^"]+)">', page)
    wanted = [
        (method.upper(), path[1:]) for path, methods in description(server)["paths"].items() for method in methods
    ]
    assert forms == wanted


def test_a_browser_sends_every_example(embedder_file: Path, tmp_path: Path) -> None:
    """In a window of 500 pixels, a script that is added to the page enters a key and presses all buttons."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser here, looked for {', '.join(BROWSERS)}; install Debian's chromium")
    with Server(embedder_file, "--api-key", KEY, "--processes", "1") as server:
        routes = sum(map(len, description(server)["paths"].values()))
        page = get(server, "/docs")[1].replace("<head>", f'<head><base href="{server.url}/">')
        press = "document.querySelectorAll('details').forEach(one => one.open = true);"
        press += f"document.querySelector('#key').value = '{KEY}';"
        press += "document.querySelectorAll('form').forEach(form => form.requestSubmit());"
        press += "document.body.dataset.wide = document.documentElement.scrollWidth;"
        file = tmp_path / "docs.html"
        file.write_text(page.replace("</body>", f"<script>{press}</script></body>"))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-web-security", "--window-size=500,900"]
        options += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"]
        done = subprocess.run(
            [browser, *options, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
    shown = re.findall(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert [text.split("\n")[0] for text in shown] == ["200 OK"] * routes
    wide = re.search(r'data-wide="(\d+)"', done.stdout)
    assert wide
    assert int(wide[1]) <= 500


def test_the_descriptions_show_no_prompt_s_text(embedder_file: Path) -> None:
    secret = "as our lawyers search:"
    with Server(embedder_file, "--query-prompt", secret, "--processes", "1") as server:
        shown = get(server, "/docs")[1] + json.dumps(description(server))
    assert "prompt_name" in shown
    assert secret not in shown


def test_names_cannot_write_into_the_page(embedder_file: Path) -> None:
    name = "<script>alert(1)</script>&\"'"
    with Server(embedder_file, "--name", name, "--processes", "1") as server:
        page = get(server, "/docs")[1]
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page
        assert description(server)["info"]["title"].startswith(name)


def test_it_may_be_left_out(embedder_file: Path) -> None:
    with Server(embedder_file, "--no-docs", "--processes", "1", "--tokenizer", str(TOKENIZER)) as server:
        assert [get(server, path)[0] for path in ("/docs", "/openapi.json", "/health")] == [404, 404, 200]
