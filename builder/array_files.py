# SPDX-License-Identifier: Apache-2.0
"""Batches and results as arrays in .npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from padfree.contract.os_errors import not_readable
from padfree.runtime import Array, Metadata, bounds_of

from .errors import BuildError
from .files import write_with

Arrays = dict[str, list[Any]]

MASK_NAME = "attention_mask"
LENGTHS_NAME = "seq_lens"
RESULT_SUFFIX = ".npz"


def read_arrays(path: Path, of_sequences: Sequence[str]) -> Arrays:
    """The token inputs of an .npz file, and the inputs with a row per sequence: name -> an array for each sequence.

    Args:
        path: holds token inputs [T] with seq_lens [B], or grids [B, S] with attention_mask.
        of_sequences: names of inputs with a row per sequence, [B] or [B, N].

    Raises:
        BuildError: the file cannot be read, or holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise BuildError(f"{path}: {not_readable(error, 'pass an .npz file')}") from error
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise BuildError(f"{path}: not an .npz file of plain arrays ({error}); write it with numpy.savez") from error
    rows = {name: list(arrays.pop(name)) for name in of_sequences if name in arrays}
    if LENGTHS_NAME in arrays:
        return rows | _split_packed(path, arrays)
    if MASK_NAME in arrays:
        return rows | _split_padded(path, arrays)
    raise BuildError(
        f"{path}: holds {sorted(arrays)}, neither {LENGTHS_NAME} (for packed tokens [T]) nor {MASK_NAME} (for grids "
        "[B, S]); add one of them"
    )


def _split_packed(path: Path, arrays: dict[str, Array]) -> Arrays:
    """Arrays [T], cut by `seq_lens` among them. Raises BuildError."""
    lengths = arrays.pop(LENGTHS_NAME)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise BuildError(
            f"{path}: {LENGTHS_NAME} is {lengths.dtype} {lengths.ravel()[:8].tolist()} of shape {list(lengths.shape)}, "
            "allowed: integers [B], 0 or more; pass the number of tokens of each sequence"
        )
    total = int(lengths.sum())
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != total:
            raise BuildError(
                f"{path}: '{name}' has shape {list(array.shape)}, but {LENGTHS_NAME} add up to {total}; pass one "
                "value for every token"
            )
    cuts = bounds_of(lengths)[1:-1]
    return {name: list(np.split(array, cuts)) if lengths.size else [] for name, array in arrays.items()}


def _split_padded(path: Path, arrays: dict[str, Array]) -> Arrays:
    """The slots of grids [B, S] that `attention_mask` among them keeps. Raises BuildError."""
    is_token = arrays.pop(MASK_NAME) != 0
    for name, array in arrays.items():
        if is_token.ndim != 2 or array.shape[:2] != is_token.shape:
            raise BuildError(
                f"{path}: '{name}' has shape {list(array.shape)}, {MASK_NAME} has {list(is_token.shape)}; "
                "make them alike, [B, S]"
            )
    return {name: [row[keep] for row, keep in zip(array, is_token, strict=True)] for name, array in arrays.items()}


def write_results(path: Path, results: Mapping[str, Sequence[Array]], metadata: Metadata) -> None:
    """Writes results as .npz: [B, ...] where a sequence has one row, packed [T, ...] with seq_lens where tokens have.

    Other outputs, such as [H, len, len], become one array per sequence: NAME.0, NAME.1, ...; constant ones come once.

    Raises:
        BuildError: the disk is full or the folder cannot be written; no file is left behind.
    """
    arrays: dict[str, Any] = {}
    for item in metadata.outputs:
        rows = results[item.name]
        if item.layout == "per_sequence":
            arrays[item.name] = np.stack(rows) if rows else np.zeros((0,), dtype=np.float32)
        elif item.layout == "constant":
            arrays.update({item.name: rows[0]} if rows else {})
        elif not item.has_token_rows:
            arrays.update({f"{item.name}.{at}": row for at, row in enumerate(rows)})
        else:
            arrays[item.name] = np.concatenate(rows) if rows else np.zeros((0,), dtype=np.float32)
            arrays[LENGTHS_NAME] = np.asarray([len(row) for row in rows], dtype=np.int32)
    write_with(path, partial(np.savez, **arrays))
