# SPDX-License-Identifier: Apache-2.0
"""Refuses counts in config.json that do not fit the folder's weights, before anything of that size is made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BuildError
from .objects import Entries
from .weights import Entry, read_header

LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")
SHARED_LAYERS = 100
"""So many layers may share one layer's weights, as ALBERT's do."""
LEAST = 4096
"""Counts up to this need no tensor of such a size: buckets, windows, heads that share their weights."""
MOST_POSITIONS = 1 << 22
"""Without a table: rotary angles are computed, and tables of them made."""
_COUNT = re.compile(
    r"(num|n)_\w+|\w*(sizes?|dims?|width|layers|heads|labels|buckets|groups|experts|positions|embeddings|rank)"
)
_POSITIONS = re.compile(r"\w*(position|positions|position_embeddings|sequence_length|ctx|distance)")
_CONFIG_KEY = re.compile(r"\w+_config")


def check_counts(weights: Sequence[Path], config: Path) -> None:
    """Compares all counts of a config.json with the weights.

    Args:
        weights: safetensors files; without any, nothing is compared.
        config: the file.

    Raises:
        BuildError: more layers than the weights have tensors, or a size beyond the largest of the tensors'.
    """
    if not weights:
        return
    entries = [entry for file in weights for entry in read_header(file).values()]
    raw = Entries(config).raw
    for name in LAYERS:
        number = raw.get(name)
        if isinstance(number, int) and number > max(len(entries), SHARED_LAYERS):
            raise _of_another(config, name, number, f"{len(entries)} tensors")
    largest = max((_largest(entry) for entry in entries), default=0)
    for name, number in _counts(raw):
        most = max(largest, MOST_POSITIONS if _POSITIONS.fullmatch(name.rpartition(".")[2]) else LEAST)
        if number > most:
            raise _of_another(config, name, number, f"no dimension beyond {largest}")


def _counts(raw: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, int]]:
    """Names and numbers of all that is counted, those of parts of the model too."""
    for name, value in raw.items():
        if isinstance(value, Mapping) and _CONFIG_KEY.fullmatch(name):
            yield from _counts(value, f"{path}{name}.")
        values = value if isinstance(value, list) else [value]
        if _COUNT.fullmatch(name) or _POSITIONS.fullmatch(name):
            yield from ((path + name, item) for item in values if isinstance(item, int))


def _largest(entry: Entry) -> int:
    """The largest dimension of a tensor that has bytes for it."""
    return min(max(entry.shape, default=0), 2 * (entry.end - entry.begin))


def _of_another(config: Path, name: str, number: int, weights: str) -> BuildError:
    return BuildError(
        f"{config}: says {name} {number}, the weights have {weights}: it belongs to another model; download the folder "
        "again"
    )
