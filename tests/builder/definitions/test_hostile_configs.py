# SPDX-License-Identifier: Apache-2.0
"""Configurations and weights that do not fit: a definition writes a model, or one clear line says why not."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import BuildError
from padfree.builder.definitions.errors import NotDefinedError
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder

from tests.support import tiny_folders
from tests.support.folders import write_json
from tests.support.safetensors_files import write_tensors

ROUNDS = int(os.environ.get("PADFREE_TEST_CONFIGS", "20"))  # per family
FAMILIES = {name.split("_")[0]: name for name in sorted(tiny_folders.names(), reverse=True)}
VALUES: tuple[Any, ...] = (
    None, 0, -1, 1, 3, 7, 10**9, 2**70, 0.0, -0.5, 1e300, float("inf"), True, False, "", "gelu", "no such thing", [],
    [1, 2], ["a"], {}, {"type": "linear"}, {"rope_type": "llama3", "factor": 0}, {"full_attention": 3}, [[[]]],
)  # fmt: skip
MOST_LETTERS = 1000


def change_entries(config: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """The entries with one to three of them changed or gone."""
    result = dict(config)
    for name in rng.sample(sorted(result), rng.randint(1, 3)):
        if rng.random() < 0.25:
            result.pop(name)
        else:
            result[name] = rng.choice(VALUES)
    return result


def reshape(tensors: Mapping[str, tuple[int, ...]], rng: random.Random) -> dict[str, tuple[int, ...]]:
    """The shapes; sometimes one is gone, transposed, longer, of another rank, or has another name."""
    result = dict(tensors)
    if rng.random() < 0.5:
        return result
    name = rng.choice(sorted(result))
    shape = result.pop(name)
    others = (None, shape[::-1], (shape[0] + 1, *shape[1:]), (*shape, 1), (0, *shape[1:]), ())
    other = rng.choice(others)
    if other is not None:
        result[name if rng.random() < 0.8 else f"{name}.more"] = other
    return result


def outcome(folder: Path) -> str:
    """The family that was written, or the error's class, after checking that the error is one short line."""
    try:
        return write_defined(read_folder(folder)).name
    except (BuildError, NotDefinedError) as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < MOST_LETTERS
        return type(error).__name__


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_changed_folders(family: str, tmp_path: Path) -> None:
    reference, rng = tiny_folders.read(FAMILIES[family]), random.Random(family)
    seen = set()
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        write_json(folder / "config.json", change_entries(reference.config, rng))
        tensors = {name: np.zeros(shape, np.float32) for name, shape in reshape(reference.tensors, rng).items()}
        write_tensors(folder / "model.safetensors", tensors)
        seen.add(outcome(folder))
    assert {"BuildError", "NotDefinedError"} & seen
