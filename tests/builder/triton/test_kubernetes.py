# SPDX-License-Identifier: Apache-2.0
"""The manifest for Kubernetes: schemas accept it, its commands are the image's, and its times fit together."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime.triton import probe

pytest.importorskip("tritonclient.grpc")
yaml = pytest.importorskip("yaml")

ModelWriter = Callable[..., Path]
PlanWriter = Callable[..., Path]


def resources(folder: Path) -> dict[str, Any]:
    """The manifest's resources by kind."""
    return {item["kind"]: item for item in yaml.safe_load_all((folder / "kubernetes.yaml").read_text("utf-8"))}


def container(folder: Path) -> dict[str, Any]:
    (actual,) = resources(folder)["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(actual, dict)
    return actual


@pytest.fixture
def on_gpu(write_plan: PlanWriter, tmp_path: Path, tokenizer: Path) -> Path:
    options = ServingOptions("bert", server="24.11", tokenizer=tokenizer)
    return write_repository(write_plan(), tmp_path / "models", options).folder


def test_the_schemas_of_kubernetes_take_it(on_gpu: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    actual = resources(on_gpu)
    assert sorted(actual) == ["Deployment", "NetworkPolicy", "Service"]
    for resource in actual.values():
        validator.validate(resource, validator.latest_version(), strict=True)
    wrong = json.loads(json.dumps(actual["Deployment"]).replace("periodSeconds", "periodSecond"))
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, validator.latest_version(), strict=True)


def test_its_commands_are_those_of_the_image(on_gpu: Path) -> None:
    dockerfile = (on_gpu / "Dockerfile").read_text("utf-8")
    check, command = (json.loads(text) for text in re.findall(r"CMD (\[.*\])$", dockerfile, re.MULTILINE))
    actual = container(on_gpu)
    assert actual["args"] == [*command, "--exit-timeout-secs=40"]
    live = actual["livenessProbe"]["exec"]["command"]
    assert live == [*check, "--live"]
    assert [*live][3:5] == ["bert", "bert_tokenizer"]


def test_its_times_fit_together(on_gpu: Path) -> None:
    actual = container(on_gpu)
    grace_s = resources(on_gpu)["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    pause_s = int(actual["lifecycle"]["preStop"]["exec"]["command"][1])
    exit_s = int(actual["args"][-1].partition("=")[2])
    assert pause_s + exit_s < grace_s
    live = actual["livenessProbe"]
    # An attempt asks each model, and a request may take 5 s.
    assert live["timeoutSeconds"] > 3 * 5 * 2 + 2 * 1


def test_a_model_on_the_cpu_asks_for_no_gpu(on_gpu: Path, packed_model: ModelWriter, tmp_path: Path) -> None:
    on_cpu = write_repository(packed_model(), tmp_path / "other", ServingOptions("bert")).folder
    assert container(on_gpu)["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": 1}
    assert container(on_cpu)["resources"]["limits"] == {"memory": "8Gi"}


def test_a_second_model_is_probed_too(packed_model: ModelWriter, tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = write_repository(packed_model(), tmp_path / "models", ServingOptions(name)).folder
    assert container(folder)["livenessProbe"]["exec"]["command"][3:] == ["one", "two", "--live"]


@pytest.mark.parametrize(("arguments", "status"), [([], 1), (["--live"], 0)])
def test_a_busy_server_is_live(arguments: list[str], status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise probe.Busy("the queue is full")

    monkeypatch.setattr(probe, "check", refuse)
    assert probe.main(["bert", "--pause", "0", *arguments]) == status
