# SPDX-License-Identifier: Apache-2.0
"""The original and the rewritten model, run in onnxruntime on the same batches."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort

from ..analysis import BATCH, BOTH, SLOTS, padded_dims
from ..errors import VerificationError
from ..files import Array, Model, open_session, parts_of
from ..importing import sequence_inputs_of, shared_inputs_of, token_inputs_of
from ..importing.fixed_axes import fixed_sizes
from .compared_output import ComparedOutput
from .repeated_layers import ShortenedModels, without_repeated_layers
from .sample_batches import (
    LONGEST,
    RAGGED,
    Batch,
    batches_padded_further,
    feeds_of,
    fillers,
    has_no_mask,
    make_batches,
    paddings,
    token_limits,
)
from .token_numbers import agree, rows_of_tokens, same_rows

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Progress = Callable[[int, int], object]
"""Called with the number of batches of a comparison that have run, and the number of all."""


class ModelPair:
    """The original and the rewritten model, with open sessions for any batches.

    `shortened_models` replace them for long sequences, as long as these models agree and run.
    """

    def __init__(
        self, original: Model, rewritten: Model, metadata: Mapping[str, Any], *, whole: bool, on_progress: Progress
    ) -> None:
        self._original = original.proto
        self._sizes = fixed_sizes(original.proto, token_inputs_of(original.proto))
        self._sessions = (_session(original, "original"), _session(rewritten, "rewritten"))
        self._dims = [padded_dims(item) for item in metadata["outputs"]]
        self._names: list[str] = [item["name"] for item in metadata["outputs"]]
        self._is_alone = has_no_mask(metadata) and metadata["interface"] == "packed"
        self._fillers = fillers(metadata)
        self._shared_inputs = shared_inputs_of(original.proto)
        self._rows = {**sequence_inputs_of(original.proto), **self._shared_inputs}
        self._long = self._sessions
        self._on_progress = on_progress
        self.parts = parts_of(self._sessions[1])
        self.shortened_models: ShortenedModels | None = None
        if not whole and not self._sizes:
            self._shorten(without_repeated_layers(original, rewritten, metadata.get("origins", {})))

    def _shorten(self, models: ShortenedModels | None) -> None:
        if models is not None:
            with contextlib.suppress(VerificationError):
                self._long = (
                    _session(models.original, "original"),
                    _session(models.rewritten, "rewritten"),
                )
                self.shortened_models = models

    def _decide(self, check: Callable[[], Result]) -> Result:
        """The result of a check; if the shortened models fail it, the whole ones decide."""
        short = self._long, self.shortened_models
        try:
            return check()
        except VerificationError:
            if self.shortened_models is None:
                raise
            self._long, self.shortened_models = self._sessions, None
            try:
                return check()
            except VerificationError:
                self._long, self.shortened_models = short
                raise

    def compare(self, metadata: Mapping[str, Any], seed: int) -> dict[str, float]:
        """Each output's largest difference over all batches. Raises VerificationError."""
        return self._decide(partial(self._compare, metadata, seed))

    def _compare(self, metadata: Mapping[str, Any], seed: int) -> dict[str, float]:
        rng = np.random.default_rng(seed)
        whole, long = (
            [ComparedOutput(item, metadata["interface"]) for item in metadata["outputs"]] for _ in ("whole", "long")
        )
        batches = make_batches(metadata, rng)
        for done, batch in enumerate(batches):
            self._on_progress(done, len(batches))
            feeds, packed_feeds = feeds_of(self._original, metadata, batch, rng)
            goes_whole = self.shortened_models is None or (
                batch.name == RAGGED if self.parts > 1 else batch.name != LONGEST
            )
            sessions = self._sessions if goes_whole else self._long
            expected = self._right_answers(batch, feeds, sessions[0])
            actual = _run(sessions[1], self._names, batch, "rewritten", packed_feeds)
            for output, a, b in zip(whole if goes_whole else long, expected, actual, strict=True):
                output.add(batch, a, b)
        worst = {a.name: max(a.largest_difference(), b.largest_difference()) for a, b in zip(whole, long, strict=True)}
        logger.info("verified on %d batches: largest difference %.1e of a column", len(batches), max(worst.values()))
        return worst

    def _right_answers(
        self, batch: Batch, feeds: Mapping[str, Array], original: ort.InferenceSession | None = None
    ) -> list[Array]:
        """The original's results; sequences are run alone if the model would take all slots of a batch for tokens."""
        run = partial(_run, original or self._sessions[0], self._names, batch, "original")
        if self._is_alone:
            return self._each_alone(run, feeds, batch)
        return self._sizes.run(run, feeds, self._dims, self._fillers)

    def padding_is_read(self, metadata: Mapping[str, Any], seed: int) -> bool:
        """Whether the original's results for tokens change with the ids in padded slots, or it cannot run on them."""
        rng = np.random.default_rng(seed)
        names = list(token_limits(metadata))
        for batch in make_batches(metadata, rng):
            feeds, _ = feeds_of(self._original, metadata, batch, rng)
            others = {
                name: np.where(batch.over(feeds[name]), feeds[name], 0).astype(feeds[name].dtype) for name in names
            }
            try:
                runs = [self._right_answers(batch, variant) for variant in (feeds, {**feeds, **others})]
            except VerificationError:
                return True
            if not agree(batch, self._dims, *runs):
                return True
        return False

    def depends_on_padding(self, metadata: Mapping[str, Any], seed: int) -> bool:
        """Whether the original's results for tokens change with what padding holds, or with how much there is."""
        self._long, self.shortened_models = self._sessions, None  # the weights of a single layer may be the cause
        if self.padding_is_read(metadata, seed):
            return True
        try:
            self.check_wider(metadata, seed)
        except VerificationError:
            return True
        return False

    def mixes_sequences(self, metadata: Mapping[str, Any], seed: int) -> bool:
        """Whether the original's results per sequence change when the first and longest one is not in the batch."""
        if self._sizes or self._is_alone or metadata["interface"] != "packed":
            return False
        rng = np.random.default_rng(seed)
        batch = next(item for item in make_batches(metadata, rng) if item.name == RAGGED)
        feeds, _ = feeds_of(self._original, metadata, batch, rng)
        rest = replace(batch, mask=batch.mask[1:])
        run = partial(_run, self._long[0], self._names)
        try:
            fewer = {name: values if name in self._shared_inputs else values[1:] for name, values in feeds.items()}
            many, few = run(batch, "original", feeds), run(rest, "original", fewer)
        except VerificationError:
            return False
        for dims, a, b in zip(self._dims, few, many, strict=True):
            if dims and dims[0] == BATCH:
                one, all_rows = rows_of_tokens(a, dims, rest.mask), rows_of_tokens(b, dims, batch.mask)
                if one is not None and all_rows is not None and not same_rows(one, all_rows[-len(one) :]):
                    return True
        return False

    def check_wider(self, metadata: Mapping[str, Any], seed: int) -> None:
        """Raises VerificationError if the original's results for tokens change when a batch is padded further.

        They may change with random ids in padding, as long as they do not with a single id there.
        """
        if not self._sizes and not self._is_alone:
            self._decide(partial(self._check_wider, metadata, seed))

    def _check_wider(self, metadata: Mapping[str, Any], seed: int) -> None:
        rng = np.random.default_rng(seed)
        for batch in batches_padded_further(metadata):
            feeds, _ = feeds_of(self._original, metadata, batch, rng)
            changed = list[str]()
            for padding_feeds in paddings(feeds, metadata, batch):
                output = self._changed_when_wider(batch, padding_feeds)
                if output is None:
                    break
                changed.append(output)
            else:
                raise VerificationError(
                    f"output '{changed[0]}' of the original depends on how far a batch is padded: sequences of up to "
                    f"{batch.mask.sum(1).max()} tokens give other numbers in {batch.mask.shape[1]} slots than in as "
                    "many as the longest one has tokens, as where that length is a number in the model, or a maximum "
                    "may take the 0 of masked slots; packed batches have no padding: mask it in the model, choose the "
                    "padded interface, or skip the check with --no-verify"
                )

    def _changed_when_wider(self, batch: Batch, feeds: Mapping[str, Array]) -> str | None:
        """The first output whose results for tokens change without the slots in which no sequence has a token."""
        token_slots = np.flatnonzero(batch.mask.any(0))
        slots = slice(int(token_slots[0]), int(token_slots[-1]) + 1)
        narrow = replace(batch, mask=batch.mask[:, slots])
        run = partial(_run, self._long[0], self._names)
        actual = run(batch, "original", feeds)
        result = run(narrow, "original", self._cut(feeds, slots))
        for name, dims, a, b in zip(self._names, self._dims, result, actual, strict=True):
            if not same_rows(rows_of_tokens(a, dims, narrow.mask), rows_of_tokens(b, dims, batch.mask)):
                return name
        return None

    def _cut(self, feeds: Mapping[str, Array], slots: slice) -> dict[str, Array]:
        """These slots of every sequence; inputs per sequence and shared ones stay whole."""
        return {name: values if name in self._rows else values[:, slots] for name, values in feeds.items()}

    def _each_alone(
        self, run: Callable[[Mapping[str, Array]], list[Array]], feeds: Mapping[str, Array], batch: Batch
    ) -> list[Array]:
        """The original's results for every sequence alone, without padding, joined like those of a batch."""
        width = batch.mask.shape[1]
        axes = [(BATCH,) if sizes is None else sizes for sizes in self._dims]
        rows: list[list[Array]] = []
        for row, length in enumerate(batch.mask.sum(1)):
            one = {
                name: values if name in self._shared_inputs else values[row : row + 1] for name, values in feeds.items()
            }
            results = run(self._cut(one, slice(length)))
            missing = [[(0, width - length if size in (SLOTS, BOTH) else 0) for size in sizes] for sizes in axes]
            rows.append(
                [
                    np.pad(item, [*pads, *[(0, 0)] * (item.ndim - len(pads))])
                    for item, pads in zip(results, missing, strict=True)
                ]
            )
        answers = []
        for parts, sizes in zip(zip(*rows, strict=True), axes, strict=True):
            axis = next((axis for axis, size in enumerate(sizes) if size in (BATCH, BOTH)), None)
            answers.append(parts[0] if axis is None else np.concatenate(parts, axis))
        return answers


class OriginalFailsError(VerificationError):
    """Raised when the original does not run."""


def _run(
    session: ort.InferenceSession, names: Sequence[str], batch: Batch, kind: str, feeds: Mapping[str, Array]
) -> list[Array]:
    try:
        return list(session.run(list(names), dict(feeds)))
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        next_step = "check that the original runs on such a batch"
        if kind == "rewritten" and batch.has_empty:
            next_step = "packed batches may hold sequences without tokens: choose the padded interface"
        fails = OriginalFailsError if kind == "original" else VerificationError
        raise fails(
            f"the {kind} model fails in onnxruntime on the batch '{batch.name}' (mask {list(batch.mask.shape)}): "
            f"{error}; {next_step}; --no-verify skips the check"
        ) from error


def _session(model: Model, kind: str) -> ort.InferenceSession:
    """A session without optimisation: some of onnxruntime's fusions are wrong, and would be wrong in both models."""
    try:
        return open_session(model, optimize=False)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise VerificationError(
            f"onnxruntime {ort.__version__} does not load the {kind} model: {error}; "
            f"check the original with onnx.checker; --no-verify skips the check"
        ) from error
