# SPDX-License-Identifier: Apache-2.0
"""Every entry of config.json that decides what is computed has several values among the references of its family.

Sizes are left out: the shapes of weights prove them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.definitions.families import DEFINITIONS
from padfree.builder.definitions.keys import Keys
from padfree.builder.folders.definition import write_defined
from padfree.builder.folders.folder import read_folder

from tests.support import tiny_folders
from tests.support.folders import write_json
from tests.support.safetensors_files import write_tensors

READERS = ("boolean", "number", "text", "texts")
ROTATIONS = ("rope_parameters.", "rope_scaling.")
"""Objects that all families read with the same functions, so that their values are counted together."""
ONE_VALUE = {
    ("DeBERTa", "relative_attention"): "false is refused",
    ("DeBERTa v2", "relative_attention"): "false is refused",
    ("EuroBERT", "is_causal"): "true is refused",
    ("Jina BERT v2", "hidden_act"): "feed_forward_type decides",
}


class Values:
    """The values that definitions read, by definition and entry."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._reads: list[tuple[str, str]] = []
        for name in READERS:
            monkeypatch.setattr(Keys, name, self._recording(getattr(Keys, name)))

    def _recording(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def recording(keys: Keys, *arguments: Any, **options: Any) -> Any:
            value, names = read(keys, *arguments, **options), [item for item in arguments if isinstance(item, str)]
            name = next((name for name in names if keys.has(name)), names[0])
            self._reads.append((f"{keys._path}{name}", repr(value)))
            return value

        return recording

    def add(self, folder: Path, adapter: str) -> None:
        """Writes a folder's model, and counts what was read."""
        self._reads.clear()
        name = write_defined(read_folder(folder), adapter=adapter).name
        for entry, value in self._reads:
            is_rotation = entry.startswith(ROTATIONS)
            self.seen["" if is_rotation else name, entry.rpartition(".")[2] if is_rotation else entry].add(value)


def test_every_entry_has_several_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = Values(monkeypatch)
    for name in tiny_folders.names():
        reference = tiny_folders.read(name)
        write_json(tmp_path / name / "config.json", reference.config)
        zeros = {tensor: np.zeros(shape, np.float32) for tensor, shape in reference.tensors.items()}
        write_tensors(tmp_path / name / "model.safetensors", zeros)
        values.add(tmp_path / name, reference.adapter)
    found = {definition for definition, _ in values.seen}
    assert found == {"", *(definition.name for definition in DEFINITIONS)}
    assert {key for key, several in values.seen.items() if len(several) < 2} == set(ONE_VALUE)
