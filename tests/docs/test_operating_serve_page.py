# SPDX-License-Identifier: Apache-2.0
"""docs/guide/operating-serve.md: our and other programs accept its units, manifests, rules and proxy settings."""

from __future__ import annotations

import argparse
import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import cli

from tests.support.pages import page

yaml = pytest.importorskip("yaml")
PAGE = page("operating-serve").read_text("utf-8")
ENDING_S = 5
"""The time that a server needs to end, in addition to what it waits for."""


def block(language: str, at: int = 0) -> str:
    return str(re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[at])


def parse(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    actual = cli.make_parser().parse_args(["serve"])
    assert set(actual.from_environment.values()) == set(variables)
    return actual


def unit() -> dict[str, str]:
    text = block("ini")
    variables = re.findall(r"(PADFREE_\w+)=(\S+)", text)
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(text)
    assert parser["Service"]["execstart"] == "/opt/padfree/bin/padfree serve"
    assert parser["Service"]["logsdirectory"] == "padfree"
    assert int(parser["Service"]["timeoutstopsec"])
    return {**dict(variables), "stop": parser["Service"]["timeoutstopsec"]}


def test_the_unit_s_settings_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = unit()
    stop_s = int(actual.pop("stop"))
    arguments = parse(actual, monkeypatch)
    assert stop_s > arguments.drain_seconds + arguments.grace_seconds + ENDING_S
    assert arguments.access_log.startswith("/var/log/padfree/")
    assert str(arguments.api_key_file) == "%d/keys"
    assert "LoadCredential=keys:" in block("ini")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze judges units: install systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    def complaints(text: str) -> str:
        file = tmp_path / "padfree.service"
        file.write_text(text.replace("/opt/padfree/bin/padfree", "/bin/sh"))
        done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
        return "\n".join(line for line in done.stderr.splitlines() if "padfree.service" in line)

    assert complaints(block("ini")) == ""
    assert "KillMod" in complaints(block("ini").replace("KillMode", "KillMod"))


def manifest() -> dict[str, Any]:
    return {item["kind"]: item for item in yaml.safe_load_all(block("yaml"))}


def test_the_schemas_of_kubernetes_take_the_manifest() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    assert sorted(manifest()) == ["Deployment", "Service"]
    for resource in manifest().values():
        validator.validate(resource, validator.latest_version(), strict=True)
    wrong = json.loads(json.dumps(manifest()["Deployment"]).replace("periodSeconds", "periodSecond"))
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, validator.latest_version(), strict=True)


def test_the_manifest_s_settings_and_times_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = manifest()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    image = dict(word.split("=", 1) for word in re.findall(r"PADFREE_\w+=\S+", block("dockerfile")))
    arguments = parse({**image, **{item["name"]: item["value"] for item in container["env"]}}, monkeypatch)
    assert pod["terminationGracePeriodSeconds"] > arguments.drain_seconds + arguments.grace_seconds + ENDING_S
    assert arguments.drain_seconds >= 2 * container["readinessProbe"]["periodSeconds"]
    assert (arguments.host, arguments.port) == ("0.0.0.0", container["ports"][0]["containerPort"])
    paths = {volume["mountPath"] for volume in container["volumeMounts"]}
    assert {str(arguments.model.parent), str(arguments.api_key_file.parent), "/tmp"} == paths
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"] == {"path": "/health", "port": "http"}
    assert json.loads(re.findall(r"ENTRYPOINT (\[.*\])", block("dockerfile"))[0]) == ["padfree", "serve"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(block("yaml", 1))["groups"] for rule in group["rules"]]


def test_the_rules_are_promql() -> None:
    parser = pytest.importorskip("promql_parser")
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        parser.parse(rule["expr"])
        assert set(re.findall(r"padfree:[\w:]+", rule["expr"])) <= recorded
        assert "record" in rule or {"alert", "for", "labels", "annotations"} < set(rule)


def test_the_rules_metrics_are_the_server_s() -> None:
    metrics = pytest.importorskip("padfree.serving.metrics")
    shown = {name.partition("{")[0] for name in (*metrics.COUNTERS, *metrics.GAUGES)}
    shown |= {f"{name}_bucket" for name in metrics.HISTOGRAMS}
    text = " ".join(rule["expr"] for rule in rules())
    named = set(re.findall(r"\b(?:te|padfree)_\w+", text))
    assert len(named) > 4
    assert named <= shown
    kinds = {kind for kinds in re.findall(r'err=~?"([\w|]+)"', text) for kind in kinds.split("|")}
    assert kinds <= set(metrics.FAILURES)


@pytest.mark.skipif(None in (shutil.which("nginx"), shutil.which("openssl")), reason="install nginx and openssl")
def test_nginx_takes_the_proxy(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.crt"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    config = tmp_path / "nginx.conf"
    config.write_text(f"pid {tmp_path}/pid; {block('nginx')}".replace("/etc/nginx", str(tmp_path)))
    subprocess.run(["nginx", "-t", "-c", str(config), "-e", str(tmp_path / "error.log")], check=True)
