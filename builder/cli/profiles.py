# SPDX-License-Identifier: Apache-2.0
"""Several engines of one command: models, precisions and profiles become one set of arguments an engine."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from padfree.builder.errors import BuildError
from padfree.contract.names import is_onnx

PLAN_SUFFIX = ".plan"
PROFILE = {"max_batch": "b", "max_seq_len": "s", "max_tokens": "t", "opt_tokens": "o"}
"""The profile's options, and what stands for them in the name of a plan."""


def engines_of(arguments: argparse.Namespace) -> list[argparse.Namespace]:
    """The arguments of every engine: one model, precision and profile each, and the plan to write.

    Every model is built in every precision and every profile. A profile's option that is given several times makes
    several profiles, in the order given; one that is given once holds for all of them.

    Raises:
        BuildError: options of a profile are given different numbers of times, or several engines have no folder.
    """
    profiles = list(_profiles(arguments))
    precisions = arguments.precision or [None]
    names = [_name_of(model) for model in arguments.model]
    engines = []
    for (model, name), precision, profile in product(zip(arguments.model, names, strict=True), precisions, profiles):
        parts = [name, *([precision] if len(precisions) > 1 else [])]
        if len(profiles) > 1:
            parts += [f"{short}{profile[option]}" for option, short in PROFILE.items() if profile[option] is not None]
        changed = {"model": model, "precision": precision, **profile, "output": "-".join(parts) + PLAN_SUFFIX}
        engines.append(argparse.Namespace(**{**vars(arguments), **changed}))
    if len(engines) == 1:
        engines[0].output = arguments.output
        return engines
    if arguments.output.exists() and not arguments.output.is_dir():
        raise BuildError(
            f"-o {arguments.output} is a file, and {len(engines)} engines need a folder; name one, or build them one "
            "by one"
        )
    for engine in engines:
        engine.output = arguments.output / engine.output
    return engines


@contextlib.contextmanager
def folder_for(path: Path) -> Iterator[None]:
    """Makes the folder that engines go to, unless it exists; a new one is removed again if it stays empty.

    Raises:
        BuildError: it cannot be made.
    """
    from padfree.builder.destinations import check_destination

    if path.is_dir():
        yield
        return
    check_destination(path, "-o")
    path.mkdir()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # it has something in it
            path.rmdir()
        raise


def _profiles(arguments: argparse.Namespace) -> Iterator[dict[str, int | None]]:
    sizes: dict[str, Sequence[int | None]] = {name: getattr(arguments, name) or [None] for name in PROFILE}
    count = max(map(len, sizes.values()))
    for name, values in sizes.items():
        if len(values) not in (1, count):
            raise BuildError(
                f"--{name.replace('_', '-')} is given {len(values)} times, and another option of the "
                f"profiles {count} times; give it once for all profiles, or {count} times"
            )
    for at in range(count):
        yield {name: values[at % len(values)] for name, values in sizes.items()}


def _name_of(model: Any) -> str:
    path = Path(model)
    return path.stem if is_onnx(path) else path.resolve().name or "model"
