# SPDX-License-Identifier: Apache-2.0
"""What the server's container image gets: a Dockerfile over NVIDIA's image, and an archive with padfree's own files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from padfree import runtime
from padfree.runtime import plugin_library

from . import libraries
from .folder import Files
from .releases import Server
from .serving import Served

DOCKERFILE = "Dockerfile"
ARCHIVE = "padfree.tar"
ROOT = "/opt"  # the archive's padfree/ becomes /opt/padfree
REPOSITORY = "/models"
SOURCE_FILES = (".py", ".typed")


def image_files(served: Served, server: Server) -> Files:
    """Dockerfile, archive, and a .dockerignore that keeps the models out of the build: they are mounted, not copied.

    All are plain files, for the server takes every folder of a repository for a model. Nothing for a server that is no
    NGC image.
    """
    if server.image is None:
        return {}
    return {
        DOCKERFILE: dockerfile(served, server).encode(),
        ".dockerignore": f"*\n!{ARCHIVE}\n".encode(),
        ARCHIVE: archive(served),
    }


def dockerfile(served: Served, server: Server) -> str:
    """The Dockerfile's text."""
    engine = served.metadata.engine
    lines = ["# Written by `padfree triton`. Build: docker build -t SERVER FOLDER, with this file's folder."]
    if engine is not None:
        lines.append(f"# The plan runs on {engine.gpu_name} (compute capability {engine.compute_capability}).")
    lines += [f"FROM {server.image}", ""]
    if server.tensorrt is not None:
        library = f"libnvinfer.so.{server.tensorrt}"
        lines += [
            f"# The plan loads in TensorRT {server.tensorrt} alone.",
            f"RUN test -n \"$(find / -xdev -name '{library}' -print -quit)\" || \\",
            f'    {{ echo "{server.image} has no TensorRT {server.tensorrt} ({library})" >&2; exit 1; }}',
            "",
        ]
    packages = python_packages(served)
    if packages:
        quoted = " ".join(f"'{package}'" for package in packages)
        lines += [f"RUN pip3 install --no-cache-dir {quoted}", ""]
    lines += [
        "# Unpacked by ADD: libraries, and the Python files of the models that run in Python.",
        f"ADD {ARCHIVE} {ROOT}/",
    ]
    if packages:
        # A .pth file, because the Python backend of older releases ignores PYTHONPATH.
        site = "$(python3 -c 'import site; print(site.getsitepackages()[0])')"
        lines.append(f'RUN echo {ROOT} > "{site}/padfree.pth"')
    command = ["tritonserver", f"--model-repository={REPOSITORY}", *server_arguments(served)]
    lines += ["", "CMD [" + ", ".join(f'"{word}"' for word in command) + "]"]
    return "\n".join(lines) + "\n"


def server_arguments(served: Served) -> list[str]:
    """What tritonserver has to be told, besides the repository."""
    if served.backend != "tensorrt":
        return []
    # The backend opens these libraries when TensorRT is loaded already (tensorrt_backend/src/tensorrt.cc,
    # TRITONBACKEND_Initialize); LD_PRELOAD would be too early.
    return [f"--backend-config=tensorrt,plugins={ROOT}/padfree/lib/{libraries.REGISTER}"]


def python_packages(served: Served) -> list[str]:
    """What padfree.runtime needs in the image, as pip's requirements; none where no Python runs."""
    texts = served.options.tokenizer is not None
    if served.backend == "tensorrt" and not texts:
        return []
    packages = ["numpy>=1.26,<2"]  # with NumPy 2 the Python backend of older releases gives empty outputs
    if texts:
        packages.append("tokenizers>=0.20")
    if served.backend == "python":
        engine = served.metadata.engine
        packages += ["onnxruntime>=1.20"] if engine is None else [f"tensorrt=={engine.tensorrt}.*", "cuda-python>=12.8"]
    return packages


def archive(served: Served) -> bytes:
    """A tar file with padfree/lib, and padfree/runtime where Python runs; the same files give the same bytes."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(_archived(served).items()):
            member = tarfile.TarInfo(f"padfree/{name}")
            member.size = path.stat().st_size
            member.mode = 0o755 if path.suffix == ".so" else 0o644
            with path.open("rb") as file:
                tar.addfile(member, file)
    return content.getvalue()


def _archived(served: Served) -> dict[str, Path]:
    """Path below padfree/ -> file."""
    found: list[Path] = []
    if served.is_plan:
        found.append(plugin_library.find())
    if served.backend == "tensorrt":
        found.append(libraries.find(libraries.REGISTER))
    files = {f"lib/{path.name}": path for path in found}
    if python_packages(served):
        folder = Path(runtime.__file__).parent
        sources = [path for path in folder.rglob("*") if path.suffix in SOURCE_FILES]
        files.update({f"runtime/{path.relative_to(folder).as_posix()}": path for path in sources})
    return files
