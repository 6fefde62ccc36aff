# SPDX-License-Identifier: Apache-2.0
"""docs/guide/operating.md: its requests, options, rules and proxy, against a real tritonserver."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.cli import main

from tests.support.folders import WIDTH, write_folder
from tests.support.pages import page
from tests.support.served_models import wait_until
from tests.support.triton_server import TritonServer, free_ports

pytest.importorskip("tritonclient.grpc")
yaml = pytest.importorskip("yaml")

PAGE = page("operating").read_text("utf-8")
METRIC = re.compile(r"\b(?:nv|padfree)_\w+")
ADMIN = "model-repository,shared-memory:admin-key=KEY"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


COMMANDS = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
CURLS = [words for words in COMMANDS if words[0] == "curl"]
RULES = [rule for group in yaml.safe_load(blocks("yaml")[0])["groups"] for rule in group["rules"]]


class Collector:
    """Keeps the bodies that an exporter of traces sends."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    actual = Collector()
    yield actual
    actual.server.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[TritonServer]:
    """The result of the page's commands on a folder, served with the page's options."""
    location = tmp_path_factory.mktemp("operating")
    modules = [("Pooling", {"pooling_mode_mean_tokens": True}), ("Normalize", {})]
    write_folder(location / "all-MiniLM-L6-v2", modules=modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(location)
        for words in COMMANDS:
            if words[0] == "padfree":
                assert main(words[1:]) == 0
    (traced,) = [words for words in COMMANDS if any("opentelemetry" in word for word in words)]
    address = f"http://127.0.0.1:{collector.server.server_port}"
    options = [word.replace("http://localhost:4318", address) for word in traced[2:]]
    options = [re.sub("rate=.*", "rate=1", option) for option in options]
    options += ["--metrics-config=summary_latencies=true", f"--http-restricted-api={ADMIN}"]
    options += [f"--grpc-restricted-protocol={ADMIN}", "--exit-timeout-secs=40"]
    assert all(option.partition("=")[0] in PAGE for option in options)
    with TritonServer(Path(os.environ["PADFREE_TRITON"]), [location / "repository"], location, *options) as running:
        yield running


def infer(url: str, body: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body.encode(), headers)
    context = ssl._create_unverified_context() if url.startswith("https") else None
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def body_of(words: list[str]) -> str:
    return words[words.index("-d") + 1]


@pytest.mark.needs_triton
def test_small_answers(server: TritonServer) -> None:
    outputs = []
    for words in CURLS:
        status, answer = infer(f"http://{words[2].replace('localhost:8000', server.url('http'))}", body_of(words))
        assert status == 200, answer
        outputs.append({item["name"]: item for item in json.loads(answer)["outputs"]})
        assert len(answer) < 60 * WIDTH
    first, second = outputs
    assert list(first) == ["sentence_embedding"]
    assert sum(value**2 for value in first["sentence_embedding"]["data"]) == pytest.approx(1.0, abs=1e-5)
    assert second["truncated"]["data"] == [False]


@pytest.mark.needs_triton
def test_a_trace_has_a_span_for_each_model(server: TritonServer, collector: Collector) -> None:
    words = CURLS[0]
    url, caller = f"http://{words[2].replace('localhost:8000', server.url('http'))}", "5f" * 16
    assert infer(url, body_of(words), traceparent=f"00-{caller}-{'a1' * 8}-01")[0] == 200
    names = (b"minilm_text", b"minilm_tokenizer", b"padfree-triton", caller.encode())
    wait_until(lambda: all(any(name in body for body in collector.bodies) for name in names))


@pytest.mark.needs_triton
def test_restricted_protocols_want_the_key(server: TritonServer) -> None:
    url = f"http://{server.url('http')}/v2/repository/index"
    assert infer(url, "")[0] == 403
    assert infer(url, "", **{"admin-key": "KEY"})[0] == 200


def test_the_rules_are_promql() -> None:
    parser = pytest.importorskip("promql_parser")
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        parser.parse(rule["expr"])
        assert set(re.findall(r"padfree:[\w:]+", rule["expr"])) <= recorded
        assert "record" in rule or {"alert", "for", "labels", "annotations"} < set(rule)
    with pytest.raises(ValueError):
        parser.parse("sum by (model (rate(padfree_runs_total[5m])))")


@pytest.mark.needs_triton
def test_every_metric_of_the_page_is_on_the_servers(server: TritonServer) -> None:
    words = CURLS[0]
    assert infer(f"http://{words[2].replace('localhost:8000', server.url('http'))}", body_of(words))[0] == 200
    named = set(METRIC.findall(" ".join(rule["expr"] for rule in RULES))) | {"nv_inference_request_summary_us"}
    assert len(named) > 7
    shown = set(METRIC.findall(server.get("metrics", "metrics")))
    assert named - shown == set()


@pytest.mark.needs_triton
@pytest.mark.skipif(None in (shutil.which("nginx"), shutil.which("openssl")), reason="needs nginx and openssl")
def test_the_proxy(server: TritonServer, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    for name in ("server.key", "server.crt"):
        assert f"/etc/nginx/{name}" in blocks("nginx")[0]
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.crt"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    text = blocks("nginx")[0].replace("/etc/nginx", str(tmp_path)).replace("8443", f"127.0.0.1:{port}")
    text = text.replace("127.0.0.1:8000", server.url("http"))
    paths = "".join(
        f"{kind}_temp_path {tmp_path}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    logs = f"access_log {tmp_path}/access.log; "
    text = text.replace("http {", "http { " + paths + logs)
    config = tmp_path / "nginx.conf"
    config.write_text(f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n{text}")
    process = subprocess.Popen(["nginx", "-c", str(config), "-e", str(tmp_path / "error.log")])
    url, key = f"https://127.0.0.1:{port}", {"Authorization": "Bearer CHANGE-ME"}
    path, body = CURLS[0][2].removeprefix("localhost:8000"), body_of(CURLS[0])

    def listens() -> bool:
        assert process.poll() is None
        try:
            return infer(url, "")[0] == 404
        except OSError:
            return False

    try:
        wait_until(listens)
        status, answer = infer(url + path, body, **key)
        assert status == 200, answer
        assert infer(url + path, body)[0] == 401
        assert infer(url + path, body, Authorization="Bearer other")[0] == 401
        assert infer(url + "/v2/repository/index", "", **key)[0] == 404
        assert infer(url + "/v2/systemsharedmemory/status", "", **key)[0] == 404
        assert infer(url + path, " " * (2 << 20), **key)[0] == 413
    finally:
        process.terminate()
        process.wait(30)
