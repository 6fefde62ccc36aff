# SPDX-License-Identifier: Apache-2.0
"""Dockerfiles, and the archive that they unpack, hold everything that the server needs and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from padfree.builder.errors import BuildError
from padfree.builder.triton import ServingOptions, write_repository

from tests.support.libraries import write_library

pytest.importorskip("tritonclient.grpc")

ModelWriter = Callable[..., Path]
PlanWriter = Callable[..., Path]

TENSORRT = """\
# Written by `padfree triton`. Build: docker build -t SERVER FOLDER, with this file's folder.
# The plan runs on NVIDIA H200 (compute capability 9.0).
FROM nvcr.io/nvidia/tritonserver:24.11-py3

# The plan loads in TensorRT 10.6.0 alone.
RUN test -n "$(find / -xdev -name 'libnvinfer.so.10.6.0' -print -quit)" || \\
    { echo "nvcr.io/nvidia/tritonserver:24.11-py3 has no TensorRT 10.6.0 (libnvinfer.so.10.6.0)" >&2; exit 1; }

# Unpacked by ADD: libraries, and the Python files of the models that run in Python.
ADD padfree.tar /opt/

# Asks the models for answers: a server calls them ready whose processes are gone.
HEALTHCHECK --interval=30s --timeout=60s --start-period=300s CMD \
["python3", "-I", "/opt/padfree/runtime/triton/probe.py", "bert"]
CMD ["tritonserver", "--model-repository=/models", \
"--backend-config=tensorrt,plugins=/opt/padfree/lib/libpadfree_register.so"]
"""


def archived_names(folder: Path) -> list[str]:
    with tarfile.open(folder / "padfree.tar") as tar:
        return tar.getnames()


def install_line(dockerfile: str) -> str:
    return next((line for line in dockerfile.splitlines() if "pip3 install" in line), "")


def test_the_tensorrt_backend(write_plan: PlanWriter, libraries: Path, tmp_path: Path) -> None:
    folder = write_repository(
        write_plan(), tmp_path / "models", ServingOptions("bert", "tensorrt", server="24.11")
    ).folder
    assert (folder / "Dockerfile").read_text() == TENSORRT
    assert (folder / ".dockerignore").read_text() == "*\n!padfree.tar\n"
    *names, probe = archived_names(folder)
    assert names == ["padfree/lib/libpadfree.so", "padfree/lib/libpadfree_register.so"]
    assert probe == "padfree/runtime/triton/probe.py"
    with tarfile.open(folder / "padfree.tar") as tar:
        for member in tar.getmembers()[:-1]:
            content = tar.extractfile(member)
            assert content is not None
            assert content.read() == (libraries / Path(member.name).name).read_bytes()


@pytest.mark.parametrize(("library", "status"), [("libnvinfer.so.10.6.0", 0), ("libnvinfer.so.10.7.0", 1)])
def test_the_image_must_have_the_plans_tensorrt(
    write_plan: PlanWriter, tmp_path: Path, library: str, status: int
) -> None:
    folder = write_repository(write_plan(), tmp_path / "models", ServingOptions("bert", server="24.11")).folder
    (command,) = re.findall(r"^RUN (test .*?[^\\])$", (folder / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL)
    image = tmp_path / "image"
    (image / "usr" / "lib").mkdir(parents=True)
    (image / "usr" / "lib" / library).touch()
    command = command.replace("find / ", f"find {image} ")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert (
        done.stderr == "nvcr.io/nvidia/tritonserver:24.11-py3 has no TensorRT 10.6.0 (libnvinfer.so.10.6.0)\n" * status
    )


def test_texts_need_python_there_too(write_plan: PlanWriter, tmp_path: Path, tokenizer: Path) -> None:
    options = ServingOptions("bert", server="24.11", tokenizer=tokenizer)
    folder = write_repository(write_plan(), tmp_path / "models", options).folder
    dockerfile = (folder / "Dockerfile").read_text()
    assert install_line(dockerfile).endswith("'numpy>=1.26,<2' 'tokenizers>=0.20'")
    site = "$(python3 -c 'import site; print(site.getsitepackages()[0])')"
    assert f'RUN echo /opt > "{site}/padfree.pth"\n' in dockerfile
    assert '"/opt/padfree/runtime/triton/probe.py", "bert", "bert_tokenizer"]\n' in dockerfile
    assert {
        "padfree/__init__.py",
        "padfree/lib/libpadfree_register.so",
        "padfree/runtime/triton/tokenizer.py",
        "padfree/contract/metadata.py",
    } <= set(archived_names(folder))


def test_the_python_backend_installs_the_plans_tensorrt(write_plan: PlanWriter, tmp_path: Path) -> None:
    options = ServingOptions("bert", backend="python", server="25.03")
    folder = write_repository(write_plan(), tmp_path / "models", options).folder
    dockerfile = (folder / "Dockerfile").read_text()
    assert "FROM nvcr.io/nvidia/tritonserver:25.03-py3\n" in dockerfile
    assert "libnvinfer" not in dockerfile
    assert "plugins=" not in dockerfile
    assert install_line(dockerfile).endswith("'numpy>=1.26,<2' 'tensorrt==10.6.0.*' 'cuda-python>=12.8'")
    assert [name for name in archived_names(folder) if name.startswith("padfree/lib/")] == ["padfree/lib/libpadfree.so"]


@pytest.mark.parametrize("backend", ["tensorrt", "python"])
def test_a_library_without_code_for_the_plans_gpu_is_not_packed(
    write_plan: PlanWriter, libraries: Path, tmp_path: Path, backend: str
) -> None:
    """What counts is the plan's GPU, not this machine's."""
    plan = write_plan()
    write_library(libraries / "libpadfree.so", "80,100")
    match = r"model bert cannot run.*NVIDIA H200 \(compute capability 9\.0\) needs code for 90a"
    with pytest.raises(BuildError, match=match):
        write_repository(plan, tmp_path / "models", ServingOptions("bert", backend=backend, server="24.11"))
    assert not (tmp_path / "models" / "bert").exists()
    write_library(libraries / "libpadfree.so", "80,90a")
    write_repository(plan, tmp_path / "models", ServingOptions("bert", backend=backend, server="24.11"))


def test_a_server_of_ones_own_gets_no_image(write_plan: PlanWriter, tmp_path: Path) -> None:
    options = ServingOptions("bert", "tensorrt", server_tensorrt="10.12.0")
    repository = write_repository(write_plan(tensorrt="10.12.0"), tmp_path / "models", options)
    assert sorted(path.name for path in repository.folder.iterdir()) == ["bert"]
    assert repository.arguments == ("--backend-config=tensorrt,plugins=/opt/padfree/lib/libpadfree_register.so",)


def test_the_archive_is_all_of_padfree_that_a_model_imports(
    packed_model: ModelWriter, tmp_path: Path, tokenizer: Path
) -> None:
    folder = write_repository(packed_model(), tmp_path / "models", ServingOptions("bert", tokenizer=tokenizer)).folder
    with tarfile.open(folder / "padfree.tar") as tar:
        tar.extractall(tmp_path / "opt", filter="data")
    # The server's own module: to import it, its name is enough.
    (tmp_path / "opt" / "triton_python_backend_utils.py").touch()
    script = (
        "import sys, padfree.runtime.triton.encoder, padfree.runtime.triton.tokenizer; "
        "print(*padfree.__path__, *sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    path = os.pathsep.join([str(tmp_path / "opt"), sysconfig.get_path("purelib")])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-S", "-c", script]  # -S leaves out what an editable install puts before all paths
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == str(tmp_path / "opt" / "padfree")
    # Packages that the image of the tensorrt backend's tokenizer does not have.
    assert not {"onnx", "onnxruntime", "tensorrt", "cuda", "tritonclient", "rich"} & set(done.stdout.split())


def test_the_same_model_gives_the_same_bytes(packed_model: ModelWriter, tmp_path: Path, tokenizer: Path) -> None:
    model, folder = packed_model(), tmp_path / "models"
    options = ServingOptions("bert", tokenizer=tokenizer)

    def write() -> dict[str, bytes]:
        write_repository(model, folder, options)
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert write() == write()
