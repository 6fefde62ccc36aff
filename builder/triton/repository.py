# SPDX-License-Identifier: Apache-2.0
"""Writes a model into a repository: one folder per model, and the files that its server's image is built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import native_backend, python_backend, tensorrt_backend
from .folder import ModelFolder
from .image import Needs, check_together, image_files, needs_of, server_arguments
from .publishing import check_repository, check_texts, manifests, open_repository, publish
from .releases import Server, misfit, newest_with, server_for_plan, server_for_python
from .serving import NATIVE, ServedModel, ServingOptions, check_widths, choose
from .text import (
    TokenizerChoice,
    choose_tokenizer,
    ensemble_folder,
    ensemble_name,
    tokenizer_folder,
    tokenizer_name,
)


@dataclass(frozen=True)
class Repository:
    """What was written.

    Attributes:
        folder: the repository.
        served: the model and its limits.
        server: the server that it is for.
        models: names of the models that were written.
        arguments: what tritonserver has to be told, besides the repository; the Dockerfile's image tells it.
        version: the number of the models' version.
        there: that version was there already, with the same files.
        needs: what the server's image is for: this model, and the others that padfree wrote there.
        tokenizer: what makes tokens of texts; None: the model takes none.
    """

    folder: Path
    served: ServedModel
    server: Server
    models: tuple[str, ...]
    arguments: tuple[str, ...]
    version: int
    there: bool
    needs: tuple[Needs, ...]
    tokenizer: TokenizerChoice | None


def write_repository(
    model: str | Path,
    folder: str | Path,
    options: ServingOptions,
    *,
    version: int | None = None,
    overwrite: bool = False,
) -> Repository:
    """Writes a plan or a rewritten .onnx file into a repository, whole or not at all.

    Other models, other files and other versions stay. A model gets the next version number; the same files make no new
    version. A server may read the repository meanwhile.

    Args:
        model: model.plan, with its metadata model.plan.json beside it, or packed.onnx.
        folder: the repository, which is made if it does not exist.
        options: how the model is served.
        version: number of the version, from 1 on; it must be the newest.
        overwrite: also replace files that were changed since they were written, and a version of that number.

    Raises:
        BuildError: options, model and server do not go together; a library, tokenizer or package is missing; a file of
            somebody else would be lost. padfree.runtime.SessionError: the plan or its metadata is damaged.
    """
    destination = Path(folder)
    check_repository(destination)
    served_model = choose(Path(model), options)
    with open_repository(destination):
        earlier = manifests(destination)
        others = [
            Needs.from_dict(item.needs, destination / name)
            for name, item in earlier.items()
            if item.needs is not None and name != options.name
        ]
        served_model, server = _server(served_model, others)
        file = served_model.options.tokenizer  # the user's, or the model's own
        tokenizer = None if file is None else choose_tokenizer(served_model, file)
        needs = needs_of(served_model, server, native_texts=tokenizer is not None and tokenizer.compiled is not None)
        models = _models(served_model, tokenizer, needs)
        check_texts(earlier, options.name, models)
        check_together(others, needs)
        every = sorted([*others, needs], key=lambda item: item.model)
        number, there = publish(destination, models, image_files(every), version=version, overwrite=overwrite)
    return Repository(
        folder=destination,
        served=served_model,
        server=server,
        models=tuple(models),
        arguments=tuple(server_arguments(every)),
        version=number,
        there=there,
        needs=tuple(every),
        tokenizer=tokenizer,
    )


def _server(served_model: ServedModel, others: Sequence[Needs]) -> tuple[ServedModel, Server]:
    """The server that the user names, else that of the other models, and the model as that serves it.

    Where the user named no backend, one whose server has another TensorRT than the plan gets the python backend; where
    the user named no server either, the newest that has the plan's TensorRT is taken.
    """
    options, engine = served_model.options, served_model.metadata.engine
    release = options.server
    if release is None and options.server_tensorrt is None and others:
        release = others[0].release
    if options.backend is None and served_model.backend == NATIVE and engine is not None:
        if options.server_tensorrt is None and (why := misfit(release, engine.tensorrt)):
            check_widths(served_model.path, served_model.metadata)
            served_model = replace(served_model, backend="python", why=why)
        elif release is None and options.server_tensorrt is None:
            release = newest_with(engine.tensorrt)
    return served_model, _server_of(served_model, release)


def _server_of(served_model: ServedModel, release: str | None) -> Server:
    options, engine = served_model.options, served_model.metadata.engine
    if served_model.backend in ("tensorrt", NATIVE) and engine is not None:
        return server_for_plan(release, options.server_tensorrt, engine.tensorrt)
    return server_for_python(release, options.server_tensorrt, engine.tensorrt if engine else None)


def _models(served_model: ServedModel, tokenizer: TokenizerChoice | None, needs: Needs) -> dict[str, ModelFolder]:
    """The encoder, and with a tokenizer the text model's other parts, the ensemble last: it waits for both."""
    options, engine = served_model.options, served_model.metadata.engine
    if served_model.backend == "tensorrt" and engine is not None:
        encoder = tensorrt_backend.model_folder(served_model, engine.profile)
    elif served_model.backend == NATIVE:
        encoder = native_backend.model_folder(served_model, tokenizer)
    else:
        encoder = python_backend.model_folder(served_model)
    models = {options.name: replace(encoder, needs=needs.to_dict())}
    if tokenizer is not None:
        models[tokenizer_name(options.name)] = tokenizer_folder(served_model, tokenizer)
        models[ensemble_name(served_model)] = ensemble_folder(served_model, tokenizer)
    return models
