# SPDX-License-Identifier: Apache-2.0
"""Polygraphy runners that all take the original's padded inputs and give back valid tokens alone.

Polygraphy's Comparator feeds every runner the same arrays and compares outputs of the same names. Here these arrays are
the original's inputs [B, S], and every runner's outputs are [T, ...] for outputs with one row per token (all valid
tokens, one sequence after the other) and [B, ...] for outputs with one row per sequence (without those that have no
tokens). Outputs with other axes, such as [B, H, S, S], have one row for every index of valid tokens along B and S.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from padfree.onnx_tools.analysis import BATCH, Dims, MaskArray, token_numbers
from padfree.runtime import Array, Session
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from ..errors import BuildError
from .batches import ComparedBatch, from_feeds, is_grid
from .original import Original


class ValidTokenRunner(BaseRunner):  # type: ignore[misc]
    """What the runners here share: the original's inputs, and outputs without padding."""

    def __init__(self, original: Original, name: str) -> None:
        super().__init__(name=name)
        self._original = original

    def get_input_metadata_impl(self) -> TensorMetadata:
        """The original's inputs [B, S]."""
        return input_metadata(self._original)

    def infer_impl(self, feed_dict: Mapping[str, Array]) -> OrderedDict[str, Array]:
        """Runs one batch."""
        batch = from_feeds(self.name, feed_dict, self._original)
        start = time.perf_counter()
        outputs = self.run(batch)
        self.inference_time = time.perf_counter() - start
        return OrderedDict((name, outputs[name]) for name in self._original.layouts if name in outputs)

    def run(self, batch: ComparedBatch) -> dict[str, Array]:
        """Output name -> [T, ...] or [B, ...]."""
        raise NotImplementedError

    def select_valid(self, outputs: Mapping[str, Array], batch: ComparedBatch) -> dict[str, Array]:
        """The valid part of padded outputs [B, S, ...] or [B, ...]."""
        return {
            name: valid_rows(array, self._original.dims[name], batch.mask)
            for name, array in outputs.items()
            if name in self._original.layouts
        }


class PaddedRunner(ValidTokenRunner):
    """Wraps a Polygraphy runner of the original's interface, such as OnnxrtRunner."""

    def __init__(self, original: Original, name: str, inner: BaseRunner) -> None:
        super().__init__(original, name)
        self._inner = inner

    def activate_impl(self) -> None:
        """Activates the wrapped runner."""
        self._inner.activate()

    def deactivate_impl(self) -> None:
        """Deactivates the wrapped runner."""
        self._inner.deactivate()

    def run(self, batch: ComparedBatch) -> dict[str, Array]:
        """Runs the padded batch, in parts where the model's sizes are fixed."""
        names = list(self._original.layouts)

        def infer(feeds: Mapping[str, Array]) -> list[Array]:
            try:
                outputs = self._inner.infer(OrderedDict(feeds))
            except Exception as error:  # onnxruntime's exceptions share no base class of their own
                sizes = ", ".join(f"'{name}' {list(values.shape)}" for name, values in feeds.items())
                raise BuildError(
                    f"'{self.name}' fails on a batch of {sizes}: {error}; where it takes no such sequences, give the "
                    "longest ones with --max-seq-len, and otherwise check that the model runs on them"
                ) from error
            return [np.array(outputs[name]) for name in names]  # runners may use their memory again

        results = self._original.sizes.run(infer, batch.feeds, list(self._original.dims.values()))
        return self.select_valid(dict(zip(names, results, strict=True)), batch)


class SessionRunner(ValidTokenRunner):
    """Wraps padfree.runtime.Session: a plan in TensorRT or a rewritten file in onnxruntime, packed or padded.

    Args:
        original: the reference.
        name: the runner's name.
        path: gives the file; called when the runner is activated, so that Polygraphy decides when an engine is built.
        device: CUDA device, for plans.
    """

    def __init__(self, original: Original, name: str, path: Callable[[], Path], *, device: int = 0) -> None:
        super().__init__(original, name)
        self._path = path
        self._device = device
        self._session: Session | None = None

    def activate_impl(self) -> None:
        """Opens the session."""
        self._session = Session(self._path(), device=self._device)

    def deactivate_impl(self) -> None:
        """Closes the session."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def run(self, batch: ComparedBatch) -> dict[str, Array]:
        """Packs the batch's valid tokens for packed models; padded ones get the batch as it is, mask included."""
        session = self._session
        if session is None:
            raise AssertionError("Polygraphy activates runners before it uses them")
        if session.metadata.interface == "padded":
            feeds = {item.name: batch.feeds[item.name].astype(item.dtype) for item in session.metadata.inputs}
            return self.select_valid(session.backend.run(feeds), batch)
        results = session.run(batch.request(self._original))
        rows_with_tokens = np.flatnonzero(batch.seq_lens).tolist()
        outputs: dict[str, Array] = {}
        for name in self._original.layouts.keys() & results.keys():
            rows = [results[name][at] for at in rows_with_tokens]
            outputs[name] = _join(rows, self._original.dims[name], batch.seq_lens[rows_with_tokens].tolist())
        return outputs


def valid_rows(array: Array, dims: Dims | None, mask: MaskArray) -> Array:
    """The rows of valid tokens or sequences of a padded output, [R, ...]."""
    rows = token_numbers(array, dims, mask)
    return rows.values.reshape(len(rows.values), *rows.element)


def _join(rows: list[Array], dims: Dims | None, lengths: list[int]) -> Array:
    """What Session gives for every sequence, as valid_rows of the whole batch."""
    split = tuple(part for size in dims or () for part in (size.split("*") if isinstance(size, str) else (size,)))
    if BATCH not in split:  # the same for all: the longest sequence has all of it
        longest = int(np.argmax(lengths))
        return valid_rows(rows[longest], split, np.ones((1, lengths[longest]), np.bool_))
    axis = split.index(BATCH)
    parts = [
        valid_rows(np.expand_dims(row, axis), split, np.ones((1, length), np.bool_))
        for row, length in zip(rows, lengths, strict=True)
    ]
    return np.concatenate(parts)


def input_metadata(original: Original) -> TensorMetadata:
    """The original's inputs as Polygraphy describes them."""
    metadata = TensorMetadata()
    for item in original.inputs:
        axes = (None,) * (0 if item.shared else 2 if is_grid(item) else 1)
        metadata.add(item.name, dtype=np.dtype(item.dtype), shape=(*axes, *item.trailing_shape))
    return metadata
