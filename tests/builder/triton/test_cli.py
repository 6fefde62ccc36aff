# SPDX-License-Identifier: Apache-2.0
"""`padfree triton`: what it prints, and errors of one paragraph, after which no folder is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.cli import main
from padfree.builder.cli.triton import image_name
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.triton.config import read_text
from padfree.contract.installation import install_command

from tests.support.folders import write_folder

pytest.importorskip("tritonclient.grpc")

ModelWriter = Callable[..., Path]
PlanWriter = Callable[..., Path]
Capture = pytest.CaptureFixture[str]

PADDED = {"name": "weights", "layout": "padded", "dtype": "float32", "shape": [None, None, 3]}


def refusal(capsys: Capture, folder: Path, *arguments: object) -> str:
    """Runs a command that must fail and returns its error, after checking that it wrote nothing."""
    assert main(["triton", *(str(argument) for argument in arguments), "-o", str(folder)]) == 1
    assert not folder.exists()
    error = capsys.readouterr().err
    assert error.startswith("padfree: error: ")
    assert error.count("\n") == 1
    return error


def test_a_plan(write_plan: PlanWriter, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "models"
    assert main(["triton", str(write_plan()), "-o", str(folder), "--name", "Bert", "--server", "24.11"]) == 0
    shown = capsys.readouterr().out
    assert "input_ids, token_type_ids [n, L]" in shown
    assert f"wrote {folder} for nvcr.io/nvidia/tritonserver:24.11-py3" in shown
    assert (
        "the server of 24.11 has security holes through which callers can run code: serve with 25.07 or newer" in shown
    )
    assert f"docker build -t bert-server {folder}" in shown  # image names are in lower case
    assert f"--gpus=all -p 8000:8000 -p 8001:8001 -p 8002:8002 -v {folder}:/models:ro bert-server" in shown


def test_an_onnx_file_with_texts(packed_model: ModelWriter, tmp_path: Path, capsys: Capture, tokenizer: Path) -> None:
    folder = tmp_path / "models"
    command = ["triton", str(packed_model()), "-o", str(folder), "--name", "bert", "--tokenizer", str(tokenizer)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert [name for name in ("bert", "bert_tokenizer", "bert_text") if f"│ {name} " not in shown] == []
    assert "docker run --rm --shm-size=1g -p" in shown  # no --gpus, as it runs on the CPU
    assert main(command) == 0  # again, over the first one


def test_a_server_of_ones_own(write_plan: PlanWriter, tmp_path: Path, capsys: Capture) -> None:
    command = ["triton", str(write_plan(tensorrt="10.12.0")), "-o", str(tmp_path / "models"), "--name", "bert"]
    assert main([*command, "--server-tensorrt", "10.12.0", "--backend", "tensorrt"]) == 0
    shown = capsys.readouterr().out
    assert "for a server of your own" in shown
    assert "has holes" not in shown
    assert "--backend-config=tensorrt,plugins=/opt/padfree/lib/libpadfree_register.so" in shown


def test_a_plan_of_another_tensorrt(write_plan: PlanWriter, tmp_path: Path, capsys: Capture) -> None:
    named = [tmp_path / "models", write_plan(), "--name", "bert", "--backend", "padfree"]
    error = refusal(capsys, *named, "--server", "25.03")
    assert "built with TensorRT 10.6.0, the server (NGC 25.03) has 10.9.0" in error
    assert "say which server" in refusal(capsys, *named)
    error = refusal(capsys, tmp_path / "models", write_plan(), "--name", "bert", "--server-tensorrt", "10.9.0")
    assert "or use --backend python, whose image gets TensorRT 10.6.0 of its own" in error


@pytest.mark.parametrize(
    ("changes", "options", "backend", "line"),
    [
        ({}, ["--server", "24.11"], "padfree", "bert runs in padfree's native backend; --backend python runs it in"),
        ({}, [], "padfree", "wrote {folder} for nvcr.io/nvidia/tritonserver:24.11-py3"),
        ({}, ["--server-tensorrt", "10.6.0"], "padfree", "runs in padfree's native backend"),
        ({}, ["--server", "25.03"], "python", "the plan was built with TensorRT 10.6.0, and server 25.03 has 10.9.0"),
        ({}, ["--server", "29.01"], "python", "padfree does not know the TensorRT of server 29.01"),
        ({"tensorrt": "10.12.0"}, [], "python", "no NGC release is known to have the plan's TensorRT 10.12.0"),
        ({"interface": "padded"}, [], "python", "bert runs in Python, because the plan has the padded interface"),
        ({}, ["--fair-share"], "python", "bert runs in Python, because --fair-share is for it"),
        ({"outputs": [PADDED]}, [], "python", "output 'weights' has no row of one size for every token"),
    ],
)
def test_the_backend_of_a_plan_and_why(
    write_plan: PlanWriter,
    tmp_path: Path,
    capsys: Capture,
    changes: dict[str, Any],
    options: list[str],
    backend: str,
    line: str,
) -> None:
    folder = tmp_path / "models"
    assert main(["triton", str(write_plan(**changes)), "-o", str(folder), "--name", "bert", *options]) == 0
    assert line.format(folder=folder) in " ".join(capsys.readouterr().out.split())
    assert read_text(folder / "bert" / "config.pbtxt").backend == backend


def test_a_plan_runs_in_python_without_the_native_libraries(
    write_plan: PlanWriter, libraries: Path, tmp_path: Path, capsys: Capture
) -> None:
    (libraries / "libtriton_padfree.so").unlink()
    folder = tmp_path / "models"
    assert main(["triton", str(write_plan()), "-o", str(folder), "--name", "bert"]) == 0
    why = "bert runs in Python, because padfree's libraries are not all here"
    assert why in " ".join(capsys.readouterr().out.split())
    assert read_text(folder / "bert" / "config.pbtxt").backend == "python"


def test_damaged_plans_are_not_served(write_plan: PlanWriter, tmp_path: Path, capsys: Capture) -> None:
    model = write_plan()
    model.write_bytes(b"a serialised engime")
    error = refusal(capsys, tmp_path / "models", model, "--name", "bert", "--server", "24.11")
    assert "the plan was changed or damaged" in error


def test_models_of_the_wrong_kind(packed_model: ModelWriter, tmp_path: Path, capsys: Capture) -> None:
    error = refusal(capsys, tmp_path / "models", packed_model(), "--name", "bert", "--backend", "tensorrt")
    assert "--backend tensorrt needs a plan; build one with: padfree build" in error


def test_an_exported_model_is_rewritten(tmp_path: Path, capsys: Capture) -> None:
    exported = DEMO_DATA / "bert_tiny.onnx"
    assert main(["triton", str(exported), "-o", str(tmp_path / "models"), "--name", "bert"]) == 0
    assert f"{exported}: rewriting it for onnxruntime on the CPU" in capsys.readouterr().err
    assert (tmp_path / "models" / "bert" / "config.pbtxt").is_file()


def test_a_folder_of_somebody_elses(packed_model: ModelWriter, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "models" / "bert" / "thesis.txt").touch()
    assert main(["triton", str(packed_model()), "-o", str(tmp_path / "models"), "--name", "bert", "--overwrite"]) == 1
    assert "holds files that padfree triton did not write" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "models").rglob("*")] == ["bert", "thesis.txt"]


def test_a_second_model_and_a_second_version(write_plan: PlanWriter, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "models"
    command = ["triton", str(write_plan()), "-o", str(folder), "--server", "24.11"]
    assert main([*command, "--name", "first"]) == 0
    assert "version 1 of first is new" in capsys.readouterr().out
    assert main([*command, "--name", "first"]) == 0
    assert "version 1 of first was there already" in capsys.readouterr().out
    assert main([*command, "--name", "second", "--version", "4"]) == 0
    shown = capsys.readouterr().out
    assert "version 4 of second is new" in shown
    assert "the server's image is for first too: build it again" in shown
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["first", "second"]


def test_without_tritonclient(
    packed_model: ModelWriter, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    error = refusal(capsys, tmp_path / "models", packed_model(), "--name", "bert")
    assert install_command("triton") in error


def test_without_tritonclient_no_folder_is_rewritten(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    folder = write_folder(tmp_path / "model")
    assert install_command("triton") in refusal(capsys, tmp_path / "models", folder, "--name", "bert")


@pytest.mark.parametrize(
    ("name", "image"),
    [("bge_Small.v1", "bge_small.v1-server"), ("a..b", "a-b-server"), ("A_b.", "a_b-server"), ("a__-b-", "a-b-server")],
)
def test_images_have_names_that_docker_takes(name: str, image: str) -> None:
    assert image_name(name) == image
