# SPDX-License-Identifier: Apache-2.0
"""`padfree triton`: writes a model repository for NVIDIA's Triton Inference Server."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING

from .console import print_line, print_table
from .option_kinds import file, integer, switch, value_of, word
from .options import add_revision_option, say

if TYPE_CHECKING:
    from padfree.builder.triton import Repository

BACKENDS = ("tensorrt", "python", "padfree")
LONG_TEXTS = ("truncate", "refuse")


HELP = "write a Triton model repository"
DESCRIPTION = (
    "Writes a model repository for NVIDIA's Triton Inference Server from an engine or a rewritten "
    "model: configurations, model files, warm-up requests, and a Dockerfile and a Kubernetes manifest for the "
    "server. Needs neither a GPU nor a server."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "model", type=Path, help="model.plan or packed.onnx; a model's folder or a Hugging Face id is served on the CPU"
    )
    add_revision_option(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="repository: a new one, or an existing one, whose other models and versions stay",
    )
    parser.add_argument("--name", required=True, metavar="NAME", help="the model's name in the server")
    integer(
        parser,
        "--version",
        "N",
        "number of the version (default: one more than the newest; the same files make no new one)",
    )
    switch(
        parser,
        "--overwrite",
        "also replace files that were changed since they were written, and the version that --version names",
    )
    _add_server_options(parser)
    _add_batching_options(parser)
    _add_text_options(parser)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--backend",
        choices=BACKENDS,
        help="padfree: its own without Python, for packed plans (their default, if the server has their TensorRT); "
        "python: padfree runs plans and .onnx files; tensorrt: Triton's own, for packed plans",
    )
    word(group, "--server", "RELEASE", "NGC release of the server, such as 25.08")
    word(group, "--server-tensorrt", "VERSION", "its TensorRT, such as 10.6.0, if padfree does not know the release")


def _add_batching_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("batching")
    integer(group, "--max-batch", "B", "maximum sequences per batch (default: the plan's, or 32)")
    integer(
        group,
        "--max-queue-delay-us",
        "US",
        "how long a request may wait for others to join its batch, microseconds",
        default=0,
    )
    integer(
        group,
        "--max-queue-size",
        "N",
        "requests that may wait; the server refuses more (default 0: no limit)",
        default=0,
    )
    integer(group, "--instances", "N", "copies of the model per GPU", default=1)
    word(group, "--gpus", "LIST", "the server's GPUs that run a plan: 'all' (default) or numbers", default="all")
    file(
        group,
        "--costs",
        "FILE",
        "table of `padfree costs`: the python backend divides batches into the cheapest runs (for padded plans)",
    )
    switch(group, "--fair-share", "the python backend shares the model among clients by tokens")


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("texts")
    file(
        group,
        "--tokenizer",
        "PATH",
        "tokenizer.json, or a folder with it (default: the one kept with the model): also writes NAME_text, an "
        "ensemble that takes texts",
    )
    integer(group, "--max-length", "S", "maximum tokens per text (default: the model's)")
    group.add_argument(
        "--long-texts", choices=LONG_TEXTS, default="truncate", help="what happens to longer texts (default truncate)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.folders.packing import runnable
    from padfree.builder.triton import ServingOptions, write_repository
    from padfree.builder.triton.config import protobuf
    from padfree.builder.triton.releases import SAFE_RELEASE
    from padfree.runtime.pool import read_devices

    options = value_of(ServingOptions, arguments, gpus=read_devices(arguments.gpus))
    protobuf()  # says what is missing before a model is exported or rewritten
    with runnable(arguments.model, revision=arguments.revision, say=say) as model:
        repository = write_repository(
            model, arguments.output, options, version=arguments.version, overwrite=arguments.overwrite
        )
    print_table("models", ("model", "takes", "gives"), _rows(repository))
    print_line(f"wrote {repository.folder} for {repository.server.image or 'a server of your own'}")
    if line := _backend_line(repository):
        print_line(line)
    if line := _tokenizer_line(repository):
        print_line(line)
    if repository.server.has_known_holes:
        print_line(
            f"the server of {repository.server.release} has security holes through which callers can run code: serve "
            f"with {SAFE_RELEASE} or newer, or admit only callers that you trust",
        )
    was = "was there already" if repository.there else "is new"
    print_line(f"version {repository.version} of {', '.join(repository.models)} {was}")
    others = [needs.model for needs in repository.needs if needs.model not in repository.models]
    if others:
        print_line(f"the server's image is for {', '.join(others)} too: build it again")
    for line in _next_steps(repository):
        print_line(line)
    return 0


def _rows(repository: Repository) -> list[tuple[str, str, str]]:
    """(model, what it takes, what it gives): the encoder, and with texts the tokenizer and the ensemble."""
    metadata = repository.served.metadata
    tokens = ", ".join(item.name for item in metadata.token_inputs())
    beside = "".join(f", {item.name} [n, {item.width or 1}]" for item in metadata.sequence_inputs())
    outputs = ", ".join(item.name for item in metadata.outputs)
    rows = "1" if repository.served.backend == "tensorrt" else "n"
    tokenizer = repository.tokenizer
    either = "" if tokenizer is None or tokenizer.compiled is None else " or text [n, 1]"
    takes = f"{tokens} [n, L]{either}{beside}"
    kinds = [(takes, outputs), ("text [n, 1]", tokens), (f"text [{rows}, 1]{beside}", outputs)]
    return [(name, takes, gives) for name, (takes, gives) in zip(repository.models, kinds, strict=False)]


def _backend_line(repository: Repository) -> str:
    """Which backend was chosen for a plan, where the user named none."""
    model, name = repository.served, repository.models[0]
    if model.options.backend is not None or not model.is_plan:
        return ""
    if model.why:
        return f"{name} runs in Python, because {model.why}"
    return f"{name} runs in padfree's native backend; --backend python runs it in Python"


def _tokenizer_line(repository: Repository) -> str:
    """Which way texts take, where there are two."""
    tokenizer = repository.tokenizer
    if tokenizer is None or repository.served.backend != "padfree":
        return ""
    encoder, name = repository.models[:2]
    if tokenizer.compiled is not None:
        return f"{encoder} takes texts too, and makes tokens in the native backend: no Python runs in this model"
    return f"{name} makes tokens in Python, because {tokenizer.why}"


def image_name(model_name: str) -> str:
    """A name for the server's image that Docker takes: in lower case, with single marks between letters and digits."""
    return re.sub(r"[._-]{2,}", "-", f"{model_name.lower()}-server")


def _next_steps(repository: Repository) -> list[str]:
    """The commands that start the server."""
    folder, image = repository.folder, image_name(repository.served.options.name)
    if repository.server.image is None:
        command = join(["tritonserver", f"--model-repository={folder}", *repository.arguments])
        return [f"start the server with padfree's libraries in /opt/padfree/lib: {command}"]
    # The Python backend hands tensors to its models in shared memory, of which containers have 64 MiB by default.
    in_python = any(needs.runs_in_python for needs in repository.needs)
    memory_option = " --shm-size=1g" if in_python else ""
    gpus = " --gpus=all" if any(needs.engine_tensorrt for needs in repository.needs) else ""
    ports = "-p 8000:8000 -p 8001:8001 -p 8002:8002"
    return [
        f"docker build -t {image} {quote(str(folder))}",
        f"docker run --rm{gpus}{memory_option} {ports} -v {quote(str(folder.resolve()))}:/models:ro {image}",
    ]
