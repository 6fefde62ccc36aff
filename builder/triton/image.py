# SPDX-License-Identifier: Apache-2.0
"""What the server's container image gets: a Dockerfile over NVIDIA's image, and an archive with padfree's own files.

The manifest for Kubernetes comes with them.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import padfree
from padfree import contract, runtime
from padfree.builder.errors import BuildError
from padfree.runtime.gpu import device_code, plugin_library

from . import kubernetes, libraries
from .folder import MANIFEST
from .releases import Server
from .serving import BACKENDS, NATIVE, ServedModel, printable
from .text import tokenizer_name

DOCKERFILE = "Dockerfile"
ARCHIVE = "padfree.tar"
BACKENDS_FOLDER = "/opt/tritonserver/backends"  # libraries of a backend look for each other in its folder
ROOT = "/opt"  # the archive's padfree/ becomes /opt/padfree
REPOSITORY = "/models"
PROBE = "triton/probe.py"  # in padfree.runtime; it needs nothing else
EXIT_S = 40  # in which a server that is stopped finishes its requests
SOURCE_FILES = (".py", ".typed")
GPU = re.compile(r"(.*) \(compute capability (\d+\.\d)\)")  # Needs.gpu
PLAIN = re.compile(r"[A-Za-z0-9_.-]+")  # of what stands in commands


@dataclass(frozen=True)
class Needs:
    """What a model needs of the server's image.

    Attributes:
        model: its name.
        release: NGC release of the server, None for one that is no NGC image.
        server_tensorrt: the server's TensorRT, where the model runs in that.
        engine_tensorrt: the plan's TensorRT, None for an .onnx file.
        gpu: the GPU that the plan was built on, for people.
        backend: one of BACKENDS.
        texts: a tokenizer belongs to it.
        gpus: how many GPUs the server must have for it: one more than the largest number that it names.
        native_texts: that tokenizer runs in padfree's own backend, not in Python.
    """

    model: str
    release: str | None
    server_tensorrt: str | None
    engine_tensorrt: str | None
    gpu: str | None
    backend: str
    texts: bool
    gpus: int = 1
    native_texts: bool = False

    @property
    def has_python_texts(self) -> bool:
        """A tokenizer belongs to it that runs in Python."""
        return self.texts and not self.native_texts

    @property
    def runs_in_python(self) -> bool:
        """Something of it does."""
        return self.backend == "python" or self.has_python_texts

    def to_dict(self) -> dict[str, Any]:
        """The fields, for the manifest."""
        return asdict(self)

    @staticmethod
    def from_dict(raw: Mapping[str, Any], folder: Path) -> Needs:
        """What a manifest holds.

        Raises:
            BuildError: it holds something else.
        """
        try:
            needs = Needs(**raw)
            texts = [needs.model, needs.backend]
            texts += [
                item for item in (needs.release, needs.server_tensorrt, needs.engine_tensorrt) if item is not None
            ]
            plain = all(PLAIN.fullmatch(item) for item in texts)
            if needs.backend not in BACKENDS or not plain or type(needs.gpus) is not int or needs.gpus < 1:
                raise ValueError("not allowed there")
        except (TypeError, ValueError) as error:
            raise BuildError(
                f"{folder / MANIFEST} does not say what the model needs ({error}); write the model again into a new "
                "folder"
            ) from error
        return needs


def needs_of(served_model: ServedModel, server: Server, *, native_texts: bool = False) -> Needs:
    """What a model that is about to be written needs."""
    engine = served_model.metadata.engine
    return Needs(
        model=served_model.options.name,
        release=server.release,
        server_tensorrt=server.tensorrt,
        engine_tensorrt=None if engine is None else engine.tensorrt,
        gpu=None if engine is None else f"{engine.gpu_name} (compute capability {engine.compute_capability})",
        backend=served_model.backend,
        texts=served_model.options.tokenizer is not None,
        gpus=1 + max(served_model.options.gpus or (0,)),
        native_texts=native_texts,
    )


def check_together(others: Sequence[Needs], new: Needs) -> None:
    """Refuses models that one server cannot have.

    Raises:
        BuildError: other releases of the server, or of TensorRT.
    """
    for other in others:
        tensorrt = {needs.server_tensorrt for needs in (other, new) if needs.server_tensorrt is not None}
        if other.release != new.release or len(tensorrt) > 1:
            raise BuildError(
                f"the repository has the model '{other.model}' for {_server(other)}, and '{new.model}' is for "
                f"{_server(new)}; one repository is for one server: choose another folder, or the same --server"
            )
        engines = {needs.engine_tensorrt for needs in (other, new) if needs.backend == "python"} - {None}
        if len(engines) > 1:
            raise BuildError(
                f"the repository has the model '{other.model}' with a plan of TensorRT {other.engine_tensorrt}, and "
                f"'{new.model}' has one of {new.engine_tensorrt}; the image gets one TensorRT for the python backend: "
                "choose another folder, or build both plans with the same"
            )


def _server(needs: Needs) -> str:
    tensorrt = f" with TensorRT {needs.server_tensorrt}" if needs.server_tensorrt else ""
    return (f"the server of NGC {needs.release}" if needs.release else "a server of your own") + tensorrt


def image_files(models: Sequence[Needs]) -> dict[str, bytes]:
    """Dockerfile, archive, manifest, and a .dockerignore that keeps the models out of the build: they are mounted.

    All are plain files, for the server takes every folder of a repository for a model. Nothing for a server that is no
    NGC image.
    """
    if models[0].release is None:
        return {}
    gpus = max((needs.gpus for needs in models if needs.engine_tensorrt is not None), default=0)
    return {
        DOCKERFILE: dockerfile(models).encode(),
        ".dockerignore": f"*\n!{ARCHIVE}\n".encode(),
        ARCHIVE: archive(models),
        kubernetes.MANIFEST: kubernetes.manifest(
            [*_command(models), f"--exit-timeout-secs={EXIT_S}"], [*_probe(models), "--live"], gpus=gpus
        ).encode(),
    }


def dockerfile(models: Sequence[Needs]) -> str:
    """The text of the Dockerfile of an image that serves all models of a repository."""
    image = Server(models[0].release, None).image
    lines = ["# Written by `padfree triton`. Build: docker build -t SERVER FOLDER, with this file's folder."]
    lines += [f"# {_plans(models, 'gpu', gpu, 'run')} on {printable(gpu)}." for gpu in _distinct(models, "gpu")]
    lines += [f"FROM {image}", ""]
    for version in _distinct(models, "server_tensorrt"):
        library = f"libnvinfer.so.{version}"
        lines += [
            f"# {_plans(models, 'server_tensorrt', version, 'load')} in TensorRT {version} alone.",
            f"RUN test -n \"$(find / -xdev -name '{library}' -print -quit)\" || \\",
            f'    {{ echo "{image} has no TensorRT {version} ({library})" >&2; exit 1; }}',
            "",
        ]
    packages = python_packages(models)
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
    if any(needs.backend == NATIVE for needs in models):
        lines.append(
            f"RUN mkdir {BACKENDS_FOLDER}/{NATIVE} && ln -s {ROOT}/padfree/lib/*.so {BACKENDS_FOLDER}/{NATIVE}/"
        )
    lines += [
        "",
        "# Asks the models for answers: a server calls them ready whose processes are gone.",
        f"HEALTHCHECK --interval=30s --timeout=60s --start-period=300s {_cmd(_probe(models))}",
        _cmd(_command(models)),
    ]
    return "\n".join(lines) + "\n"


def _command(models: Sequence[Needs]) -> list[str]:
    """What starts the server in the image."""
    return ["tritonserver", f"--model-repository={REPOSITORY}", *server_arguments(models)]


def _probe(models: Sequence[Needs]) -> list[str]:
    """What asks all models for answers in the image."""
    names = [
        name for needs in models for name in (needs.model, *([tokenizer_name(needs.model)] if needs.texts else []))
    ]
    return ["python3", "-I", f"{ROOT}/padfree/runtime/{PROBE}", *names]


def _cmd(words: Sequence[str]) -> str:
    """A command, as a Dockerfile has it. No word has a character that would need escaping."""
    return "CMD [" + ", ".join(f'"{word}"' for word in words) + "]"


def _distinct(models: Sequence[Needs], field: str) -> list[str]:
    return sorted({getattr(needs, field) for needs in models} - {None})


def _plans(models: Sequence[Needs], field: str, value: str, verb: str) -> str:
    """The beginning of a sentence about the plans that have a value in common."""
    names = [needs.model for needs in models if getattr(needs, field) == value]
    if len(models) == 1:
        return f"The plan {verb}s"
    return f"The plan of {names[0]} {verb}s" if len(names) == 1 else f"The plans of {', '.join(names)} {verb}"


def server_arguments(models: Sequence[Needs]) -> list[str]:
    """What tritonserver has to be told, besides the repository."""
    if all(needs.backend != "tensorrt" for needs in models):
        return []
    # The backend opens these libraries when TensorRT is loaded already (tensorrt_backend/src/tensorrt.cc,
    # TRITONBACKEND_Initialize); LD_PRELOAD would be too early.
    return [f"--backend-config=tensorrt,plugins={ROOT}/padfree/lib/{libraries.REGISTER}"]


def python_packages(models: Sequence[Needs]) -> list[str]:
    """What padfree.runtime needs in the image, as pip's requirements; none where no Python runs."""
    in_python = [needs for needs in models if needs.backend == "python"]
    texts = any(needs.has_python_texts for needs in models)
    if not in_python and not texts:
        return []
    packages = ["numpy>=1.26,<2"]  # with NumPy 2 the Python backend of older releases gives empty outputs
    if texts:
        packages.append("tokenizers>=0.20")
    versions = sorted({needs.engine_tensorrt for needs in in_python if needs.engine_tensorrt is not None})
    if any(needs.engine_tensorrt is None for needs in in_python):
        packages.append("onnxruntime>=1.20")
    packages += [f"tensorrt=={version}.*" for version in versions]
    return packages + ["cuda-python>=12.8"] * bool(versions)


def archive(models: Sequence[Needs]) -> bytes:
    """A tar file with padfree/lib and the probe; for models that run in Python also padfree, its runtime and contract.

    The same files give the same bytes.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(_files_of_archive(models).items()):
            member = tarfile.TarInfo(f"padfree/{name}")
            member.size = path.stat().st_size
            member.mode = 0o755 if path.suffix == ".so" else 0o644
            with path.open("rb") as file:
                tar.addfile(member, file)
    return content.getvalue()


def _files_of_archive(models: Sequence[Needs]) -> dict[str, Path]:
    """Path below padfree/ -> file."""
    paths: list[Path] = []
    if any(needs.engine_tensorrt is not None for needs in models):
        paths.append(_library_for(models))
    paths += libraries.find_needed([needs.backend for needs in models])
    files = {f"lib/{path.name}": path for path in paths}
    folder = Path(runtime.__file__).parent
    files[f"runtime/{PROBE}"] = folder / PROBE
    if python_packages(models):
        files["__init__.py"] = Path(str(padfree.__file__))
        for package in (contract, runtime):
            files.update(_sources(Path(str(package.__file__)).parent))
    return files


def _library_for(models: Sequence[Needs]) -> Path:
    """libpadfree.so, which has code for the GPUs of all plans.

    Raises:
        BuildError: it has none for one of them; padfree.runtime.SessionError: there is no library.
    """
    library = plugin_library.find()
    for needs in models:
        gpu = GPU.fullmatch(needs.gpu or "")
        if gpu is not None and (problem := device_code.problem(gpu[1], gpu[2], library)):
            raise BuildError(f"the plan of model {needs.model} cannot run with the library here: {problem}")
    return library


def _sources(package: Path) -> dict[str, Path]:
    """Path below padfree/ -> file, of a package that lies there."""
    paths = (path for path in package.rglob("*") if path.suffix in SOURCE_FILES)
    return {f"{package.name}/{path.relative_to(package).as_posix()}": path for path in paths}
