# SPDX-License-Identifier: Apache-2.0
"""What models are compared on: generated batches, the user's texts or token files, Polygraphy's loaders and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from padfree.contract.data_files import ARRAYS, kind_of
from padfree.runtime import Metadata
from polygraphy import mod
from polygraphy.json import load_json

from ..batches import TextOptions, read_batch
from ..errors import BuildError
from .batches import HOLES, LEFT, ComparedBatch, from_feeds, generate, make_batch
from .original import Original

LOADER_FUNCTION = "load_data"  # what Polygraphy calls in a data loader script
SEQUENCES_A_BATCH = 16
GENERATED_BATCH = 8
LONGEST = 512  # tokens, where the model allows more: a comparison on a CPU stays a matter of seconds
LONGEST_WITHOUT_LIMIT = 128  # where the model knows no largest position


@dataclass(frozen=True)
class DataOptions:
    """Where batches come from; without a file they are generated from the seed."""

    file: Path | None = None
    tokenizer: Path | None = None
    truncate: bool = False
    max_seq_len: int | None = None
    seed: int = 0


def make_batches(
    original: Original, models: Sequence[Metadata | None], options: DataOptions
) -> tuple[ComparedBatch, ...]:
    """The batches of a comparison.

    Where a model takes no mask, a batch that is not padded as the original expects comes a second time, padded so:
    packed models give the original's answers to that.

    Args:
        original: the reference.
        models: metadata of what is compared with it, None for models with the original's interface.
        options: see DataOptions.

    Raises:
        BuildError: the file cannot be read or holds no batch.
    """
    packed = any(item is not None and item.is_packed for item in models)
    padded = any(item is None or item.interface == "padded" for item in models)
    if options.file is None:
        # Some originals are only right for right-padded batches, or left-padded ones; the rewriter finds that out.
        right_padded = original.metadata.raw.get("coverage", {}).get("right_padded_only", False)
        any_mask = padded and not right_padded and not original.is_left_padded
        others = [item.raw.get("coverage", {}) for item in models if item is not None]
        kinds = (LEFT,) if any(item.get("contiguous_because") for item in others) else (LEFT, HOLES)
        return _generate(original, models, options, kinds=kinds if any_mask else ())
    batches = _read(options.file, original, options)
    if not batches:
        raise BuildError(f"{options.file}: holds no sequence; a comparison needs at least one")
    usual_batches = [batch for batch in batches if batch.is_usual(original)]
    twins = [batch.padded_as_usual(original) for batch in batches if packed and not batch.is_usual(original)]
    return (*batches, *twins) if padded else (*usual_batches, *twins)


def _generate(
    original: Original, models: Sequence[Metadata | None], options: DataOptions, kinds: tuple[str, ...]
) -> tuple[ComparedBatch, ...]:
    positions = original.metadata.max_positions
    longest = LONGEST_WITHOUT_LIMIT if positions is None else min(positions, LONGEST)
    profiles = [item.engine.profile for item in models if item is not None and item.engine is not None]
    if options.max_seq_len is not None:
        if options.max_seq_len < 1:
            raise BuildError(f"--max-seq-len {options.max_seq_len}, allowed: 1 or more; leave it out for {longest}")
        if positions is not None and options.max_seq_len > positions:
            raise BuildError(f"--max-seq-len {options.max_seq_len} > the model's {positions} positions; pass fewer")
        longest = options.max_seq_len
    return generate(
        original,
        max_batch=min([GENERATED_BATCH, *(profile.max_batch for profile in profiles)]),
        max_seq_len=min([longest, *(profile.max_seq_len for profile in profiles)]),
        kinds=kinds,
        seed=options.seed,
    )


def _read(path: Path, original: Original, options: DataOptions) -> list[ComparedBatch]:
    if not path.is_file():
        raise BuildError(f"{path}: no such file; pass texts, a token file, or a Polygraphy data loader script")
    if path.suffix == ".py":
        return _from_loader(path.name, mod.import_from_script(str(path), LOADER_FUNCTION)(), original)
    if path.suffix.lower() == ".json":
        return _read_json(path, original)
    if kind_of(path) == ARRAYS:
        with np.load(path, allow_pickle=False) as file:
            names = [item.name for item in original.inputs]
            if set(names) <= set(file.files) and all(
                file[item.name].ndim == 2 for item in original.tokens
            ):  # grids: their masks may be of any kind, and are kept
                return [from_feeds(path.name, {name: file[name] for name in file.files}, original)]
    rows = read_batch(path, original.metadata, TextOptions(options.tokenizer, options.truncate))
    return _chunks(path.name, rows, original)


def _read_json(path: Path, original: Original) -> list[ComparedBatch]:
    try:
        content = load_json(str(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: not JSON ({error}); write it with polygraphy run --save-inputs") from error
    if isinstance(content, dict):
        return _chunks(path.name, content, original)
    return _from_loader(path.name, content, original)


def _from_loader(name: str, feeds: Iterable[Any], original: Original) -> list[ComparedBatch]:
    return [from_feeds(f"{name}[{at}]", item, original) for at, item in enumerate(feeds)]


def _chunks(name: str, columns: dict[str, list[Any]], original: Original) -> list[ComparedBatch]:
    """Ragged rows as right-padded batches."""
    ids = original.metadata.ids_input().name
    of_sequences = [item.name for item in original.rows]
    unknown = sorted(set(columns) - {item.name for item in original.tokens} - set(of_sequences))
    if unknown or ids not in columns:
        raise BuildError(
            f"{name}: holds {', '.join(columns)}, the model's token inputs are "
            f"{', '.join(item.name for item in original.tokens)}; give one list of ids a sequence for each"
        )
    count = len(columns[ids])
    for column in of_sequences:
        if len(columns.get(column, ())) != count:
            raise BuildError(f"{name}: '{column}' has no row for every sequence; give one for each of the {count}")
    for column, rows in columns.items():
        if column not in of_sequences and [len(row) for row in rows] != [len(row) for row in columns[ids]]:
            raise BuildError(f"{name}: '{column}' has other lengths than '{ids}'; give one value a token")
    batches, size = [], SEQUENCES_A_BATCH if original.has_mask else 1
    for start in range(0, count, size):
        end = min(start + size, count)
        part = {column: [np.asarray(row) for row in values[start:end]] for column, values in columns.items()}
        batches.append(make_batch(f"{name}, sequences {start} to {end - 1}", part, original))
    return batches
