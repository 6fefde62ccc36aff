# SPDX-License-Identifier: Apache-2.0
"""Writes a model repository: one folder a model, and the files that its server's image is built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import python_backend, tensorrt_backend
from .folder import Files, check_folder, write_folder
from .image import image_files, server_arguments
from .releases import Server, server_for_plan, server_for_python
from .serving import Served, ServingOptions, choose
from .text import ensemble_files, ensemble_name, tokenizer_files, tokenizer_name


@dataclass(frozen=True)
class Repository:
    """What was written.

    Attributes:
        folder: the repository.
        served: the model and its limits.
        server: the server that it is for.
        models: names of the models in it.
        arguments: what tritonserver has to be told, besides the repository; the Dockerfile's image tells it.
    """

    folder: Path
    served: Served
    server: Server
    models: tuple[str, ...]
    arguments: tuple[str, ...]


def write_repository(
    model: str | Path, folder: str | Path, options: ServingOptions, *, overwrite: bool = False
) -> Repository:
    """Writes the repository of a plan or a rewritten .onnx file, whole or not at all.

    Args:
        model: model.plan, with its metadata model.plan.json beside it, or packed.onnx.
        folder: where it goes: a new or an empty folder, or one that this function wrote.
        options: how the model is served.
        overwrite: also replace a repository that was changed since it was written.

    Raises:
        BuildError: options, model and server do not go together; a library, tokenizer or package is missing; the folder
            may not be written. padfree.runtime.SessionError: the plan or its metadata is damaged.
    """
    destination = Path(folder)
    check_folder(destination, overwrite=overwrite)
    served = choose(Path(model), options)
    engine = served.metadata.engine
    if served.backend == "tensorrt" and engine is not None:
        server = server_for_plan(options.server, options.server_tensorrt, engine.tensorrt)
        models = {options.name: tensorrt_backend.model_files(served, engine.profile)}
    else:
        server = server_for_python(options.server, options.server_tensorrt, engine.tensorrt if engine else None)
        models = {options.name: python_backend.model_files(served)}
    if options.tokenizer is not None:
        models[tokenizer_name(served)] = tokenizer_files(served, options.tokenizer)
        models[ensemble_name(served)] = ensemble_files(served)
    files: Files = image_files(served, server)
    for name, content in models.items():
        files.update({f"{name}/{path}": item for path, item in content.items()})
    write_folder(destination, files, overwrite=overwrite)
    return Repository(destination, served, server, tuple(models), tuple(server_arguments(served)))
