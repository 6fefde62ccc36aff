# SPDX-License-Identifier: Apache-2.0
"""The axes of a file's inputs that are fixed, and how to run a batch on such a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from ...analysis import BATCH, BOTH, SLOTS, Dims
from ...errors import RewriteError
from ...files import Array

EXPORT_AGAIN = (
    "export the model again with dynamic axes: torch.onnx.export(..., dynamic_axes={'input_ids': {0: 'batch', 1: "
    "'sequence'}, ...}) or, with dynamo=True, dynamic_shapes; optimum-cli export onnx without --batch_size, "
    "--sequence_length and --no-dynamic-axes"
)
_NAMES = ("batch", "sequence")


@dataclass(frozen=True)
class FixedSizes:
    """Sizes of the token inputs [B,S] that the file fixes; None where an axis is dynamic."""

    batch: int | None = None
    sequence: int | None = None

    def __bool__(self) -> bool:
        return self.batch is not None or self.sequence is not None

    def __str__(self) -> str:
        sizes = (self.batch, self.sequence)
        return f"[{', '.join(name if size is None else str(size) for name, size in zip(_NAMES, sizes, strict=True))}]"

    def run(
        self,
        run: Callable[[Mapping[str, Array]], Sequence[Array]],
        feeds: Mapping[str, Array],
        dims: Sequence[Dims | None],
        fillers: Mapping[str, int] | None = None,
    ) -> list[Array]:
        """Results of a file of these sizes on inputs [B,S] of any B, and of any S up to the file's.

        The sequences are padded with zeros, mask included, or with what `fillers` has for an input, and run in as many
        batches as it takes; the last one is filled up with its first sequence. `dims` are the sizes of each result,
        which is joined along the batch and cut back to S along every axis of the sequence; None counts as [B,...].
        """
        if not self:
            return list(run(feeds))
        count, length = next(iter(feeds.values())).shape[:2]
        full = length if self.sequence is None else self.sequence
        part = count if self.batch is None else self.batch
        fillings, wider = fillers or {}, [(0, 0), (0, full - length)]
        wide = {
            name: np.pad(item, [*wider, *[(0, 0)] * (item.ndim - 2)], constant_values=fillings.get(name, 0))
            for name, item in feeds.items()
        }
        parts: list[Sequence[Array]] = []
        for start in range(0, count, part):
            rows = [row if row < count else start for row in range(start, start + part)]
            parts.append(run({name: values[rows] for name, values in wide.items()}))
        return [
            join([part[at] for part in parts], (BATCH,) if sizes is None else sizes, (count, length), full)
            for at, sizes in enumerate(dims)
        ]


def join(parts: Sequence[Array], dims: Dims, extent: tuple[int, int], full: int) -> Array:
    """One result of all parts; `extent` has the number of sequences and their length, `full` is the file's length."""
    count, length = extent
    if BOTH in dims:
        axis = dims.index(BOTH)
        wide = [part.reshape(*part.shape[:axis], -1, full, *part.shape[axis + 1 :]) for part in parts]
        result = join(wide, (*dims[:axis], BATCH, SLOTS, *dims[axis + 1 :]), extent, full)
        return result.reshape(*result.shape[:axis], -1, *result.shape[axis + 2 :])
    result = parts[0]
    if BATCH in dims:
        axis = dims.index(BATCH)
        result = np.take(np.concatenate(parts, axis), range(count), axis)
    for axis, size in enumerate(dims):
        if size == SLOTS:
            result = np.take(result, range(length), axis)
    return result


def fixed_sizes(model: ModelProto, token_inputs: Sequence[str]) -> FixedSizes:
    """The sizes that the token inputs fix. Raises RewriteError where they contradict each other or leave one token."""
    axes_sizes: list[int | None] = []
    for axis, name in enumerate(_NAMES):
        dims = {item.name: item.type.tensor_type.shape.dim[axis] for item in model.graph.input
                if item.name in token_inputs}  # fmt: skip
        sizes = {item: dim.dim_value for item, dim in dims.items() if dim.HasField("dim_value")}
        if len(set(sizes.values())) > 1:
            text = ", ".join(f"'{item}' {size}" for item, size in sizes.items())
            raise RewriteError(f"the inputs fix different sizes of the {name} ({text}); {EXPORT_AGAIN}")
        axes_sizes.append(next(iter(sizes.values()), None))
    if any(size is not None and size <= axis for axis, size in enumerate(axes_sizes)):
        raise RewriteError(
            f"the inputs have the fixed size {FixedSizes(*axes_sizes)}; at least 1 sequence of 2 tokens is needed; "
            f"{EXPORT_AGAIN}"
        )
    return FixedSizes(*axes_sizes)
