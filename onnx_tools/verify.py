# SPDX-License-Identifier: Apache-2.0
"""Runs original and rewritten model in onnxruntime on ragged batches and compares what is not padding."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import ModelProto, helper

from .agreement import measure
from .errors import VerificationError
from .fixed_axes import fixed_sizes
from .importing import token_inputs_of
from .kept import BATCH, BOTH, SLOTS, Dims, Rows, fits, kept_rows, packed_rows, padded_dims
from .layout import Layout
from .sessions import open_session
from .weights import Weights

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# Allowed difference, in parts of a column's root mean square. Both models compute in float32, with sums of up to a
# few thousand terms in another order: 6e-6 was measured after the 12 layers of BERT-base, and deeper models may have
# ten times that. A bias or a residual that is lost shows from 1e-2 on.
RELATIVE_TOLERANCE = 2e-4
_LONGEST = 512  # tokens of the longest sequence, where the model allows more: verification stays a matter of seconds
_LONGEST_WITHOUT_LIMIT = 128  # where the model knows no largest position
_IDS_WITHOUT_LIMIT = 2  # ids are drawn below it where the model's table is not known
_FILLER_TOKENS = 5


@dataclass(frozen=True)
class Batch:
    """One ragged batch; mask is bool [B,S]."""

    name: str
    mask: npt.NDArray[np.bool_]
    keeps_first_slot: bool = True  # of every sequence
    filler_tokens: int = 0
    has_empty: bool = False  # the rewritten model also gets an empty sequence before each one


def verify(
    original: ModelProto,
    rewritten: ModelProto,
    metadata: Mapping[str, Any],
    *,
    seed: int = 0,
    weights: tuple[Weights | None, Weights | None] = (None, None),
) -> dict[str, float]:
    """Compares the two models on seeded ragged batches; padded slots hold random ids.

    The rewritten model carries function bodies and is still float32; `metadata` is the object that goes into it;
    `weights` are those that original and rewritten model have not.
    Returns each output's largest difference, in parts of a column's root mean square (see agreement.py); numbers that
    are infinite or not a number, integers and stand-ins for infinity have to be equal.
    Raises VerificationError for the first output value that differs by more than RELATIVE_TOLERANCE.
    """
    rng = np.random.default_rng(seed)
    fixed = fixed_sizes(original, token_inputs_of(original))
    sessions = [_session(original, "original", weights[0]), _session(rewritten, "rewritten", weights[1])]
    outputs = [_Output(item, metadata["interface"]) for item in metadata["outputs"]]
    names = [output.name for output in outputs]
    batches = make_batches(metadata, rng)
    for batch in batches:
        feeds, given = _feeds(original, metadata, batch, rng)
        runs = [
            partial(_run, session, names, batch, kind)
            for session, kind in zip(sessions, ("original", "rewritten"), strict=True)
        ]
        dims = [output.dims for output in outputs]
        alone = _has_no_mask(metadata) and metadata["interface"] == "packed"
        wanted = _alone(runs[0], feeds, batch, dims) if alone else fixed.run(runs[0], feeds, dims, _fillers(metadata))
        for output, a, b in zip(outputs, wanted, runs[1](given), strict=True):
            output.add(batch, a, b)
    worst = {output.name: output.largest_difference() for output in outputs}
    logger.info("verified on %d batches: largest difference %.1e of a column", len(batches), max(worst.values()))
    return worst


@dataclass(frozen=True)
class Sample:
    """Inputs of a rewritten model, and the mask of their batch, bool [B,S]."""

    feeds: Mapping[str, Array]
    mask: npt.NDArray[np.bool_]


def sample_of(original: ModelProto, metadata: Mapping[str, Any], *, seed: int = 0) -> Sample:
    """One of the batches that `verify` takes, a ragged one."""
    rng = np.random.default_rng(seed)
    batch = next(item for item in make_batches(metadata, rng) if item.name == "ragged")
    return Sample(_feeds(original, metadata, batch, rng)[1], batch.mask)


def _feeds(
    original: ModelProto, metadata: Mapping[str, Any], batch: Batch, rng: np.random.Generator
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The batch as the original's inputs, and as the rewritten model's."""
    feeds = _original_feeds(original, metadata, batch, rng)
    return feeds, feeds if metadata["interface"] == "padded" else _packed_feeds(feeds, metadata, batch, rng)


def make_batches(metadata: Mapping[str, Any], rng: np.random.Generator) -> list[Batch]:
    """One token, the longest sequence, ragged ones; for the padded interface also left-padded and holed masks.

    Those are left out where the original is only right for right-padded ones.
    """
    limit = metadata.get("max_positions")
    longest = _LONGEST_WITHOUT_LIMIT if limit is None else min(limit, _LONGEST)
    some = max(1, min(longest, 19))
    lengths = [some, 1, *(int(length) for length in rng.integers(1, some + 1, 3))]
    batches = [
        Batch("one token", _prefix_mask([1])),
        Batch("ragged", _prefix_mask(lengths)),
        Batch("longest", _prefix_mask([longest])),
    ]
    if _has_no_mask(metadata) and metadata["interface"] == "padded":
        return [Batch(item.name, np.ones_like(item.mask)) for item in batches]  # every slot is a token
    if metadata["interface"] == "packed":
        mask = _prefix_mask(lengths)
        return [*batches, Batch("filler and empty", mask, filler_tokens=_FILLER_TOKENS, has_empty=True)]
    if metadata.get("coverage", {}).get("right_padded_only", False):
        return batches  # under other masks the original's attention reads padding
    prefix = _prefix_mask(lengths)
    holed = rng.random(prefix.shape) < 0.6
    holed[:, 0] = True
    return [
        *batches,
        Batch("left-padded", prefix[:, ::-1].copy(), keeps_first_slot=False),
        Batch("holed", holed),
    ]


def _has_no_mask(metadata: Mapping[str, Any]) -> bool:
    """Whether the model has no mask: every slot that the original gets is a token."""
    return "mask" in metadata and metadata["mask"] is None


def _fillers(metadata: Mapping[str, Any]) -> dict[str, int]:
    """What the mask's input holds in padded slots."""
    mask = metadata.get("mask")
    return {mask["input"]: mask["masked"][0]} if mask else {}


def _alone(
    run: Callable[[Mapping[str, Array]], list[Array]],
    feeds: Mapping[str, Array],
    batch: Batch,
    dims: Sequence[Dims | None],
) -> list[Array]:
    """The original's results for every sequence alone, without padding, put together as those of a batch."""
    width = batch.mask.shape[1]
    known = [(BATCH,) if sizes is None else sizes for sizes in dims]
    rows: list[list[Array]] = []
    for row, length in enumerate(batch.mask.sum(1)):
        results = run({name: values[row : row + 1, :length] for name, values in feeds.items()})
        missing = [[(0, width - length if size in (SLOTS, BOTH) else 0) for size in sizes] for sizes in known]
        rows.append(
            [
                np.pad(item, [*pads, *[(0, 0)] * (item.ndim - len(pads))])
                for item, pads in zip(results, missing, strict=True)
            ]
        )
    joined = []
    for parts, sizes in zip(zip(*rows, strict=True), known, strict=True):
        axis = next((axis for axis, size in enumerate(sizes) if size in (BATCH, BOTH)), None)
        joined.append(parts[0] if axis is None else np.concatenate(parts, axis))
    return joined


def _prefix_mask(lengths: Sequence[int]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.arange(max(lengths)) < np.array(lengths)[:, None])


def _original_feeds(
    original: ModelProto, metadata: Mapping[str, Any], batch: Batch, rng: np.random.Generator
) -> dict[str, Array]:
    """The original's inputs; the one that is no token input of the rewritten model is the mask.

    A mask has values that keep a slot at tokens, and values that mask it at padding, whatever else it tells.
    """
    mask = metadata.get("mask") or {"input": None, "kept": [1], "masked": [0]}
    limits = {item["name"]: item["limit"] for item in metadata["inputs"] if item["role"] == "tokens"}
    excluded = metadata.get("coverage", {}).get("excluded_ids", {})
    initializers = {tensor.name for tensor in original.graph.initializer}
    feeds: dict[str, Array] = {}
    for item in original.graph.input:
        if item.name in initializers:
            continue
        dtype = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        if item.name in limits:
            limit = limits[item.name] or _IDS_WITHOUT_LIMIT
            ids = rng.integers(0, limit, batch.mask.shape)
            own = item.name == mask["input"]
            if own and not limits[item.name]:
                ids = rng.choice(mask["kept"], batch.mask.shape)
            elif not limits[item.name]:  # positions may choose from a table that is cut to the sequence's length
                ids = np.minimum(ids, np.arange(batch.mask.shape[1]))
            refused = {*excluded.get(item.name, ()), *(mask["masked"] if own else ())}
            other = next(value for value in range(len(refused) + 1) if value not in refused)
            ids = np.where(np.isin(ids, list(refused)) & batch.mask, other, ids)
            padding = rng.choice(mask["masked"], batch.mask.shape) if own else ids
            feeds[item.name] = np.where(batch.mask, ids, padding).astype(dtype)
        else:
            feeds[item.name] = np.where(batch.mask, mask["kept"][0], mask["masked"][0]).astype(dtype)
    return feeds


def _packed_feeds(
    feeds: Mapping[str, Array], metadata: Mapping[str, Any], batch: Batch, rng: np.random.Generator
) -> dict[str, Array]:
    lengths = batch.mask.sum(1).astype(np.int32)
    if batch.has_empty:
        lengths = np.stack([np.zeros_like(lengths), lengths], axis=1).reshape(-1)
    packed: dict[str, Array] = {}
    for item in metadata["inputs"]:
        name, role = item["name"], item["role"]
        if role == "seq_lens":
            packed[name] = lengths
        elif role == "max_seqlen":
            packed[name] = np.zeros(batch.mask.shape[1], np.int32)
        else:
            filler = rng.integers(0, item["limit"] or _IDS_WITHOUT_LIMIT, batch.filler_tokens)
            packed[name] = np.concatenate([feeds[name][batch.mask], filler]).astype(np.int32)
    return packed


class _Output:
    """The kept numbers of one output in both models, batch by batch."""

    def __init__(self, description: Mapping[str, Any], interface: str) -> None:
        self.name: str = description["name"]
        self.dims = padded_dims(description)
        self._layout: str = description["layout"]
        self._interface = interface
        self._batches: list[tuple[Batch, Rows, Rows]] = []

    def add(self, batch: Batch, wanted: Array, found: Array) -> None:
        """Takes the output of one batch. Raises VerificationError for other shapes."""
        if not batch.keeps_first_slot and not {SLOTS, BOTH} & set(self.dims or ()):
            return  # a head that reads the masked first slot cannot be reproduced
        if wanted.dtype.kind in "OSU":
            if not np.array_equal(wanted, found):
                raise VerificationError(
                    f"output '{self.name}' holds texts, and others than in the original (batch '{batch.name}', "
                    f"{self._interface} interface); please report this; --no-verify skips the check"
                )
            return
        mask = batch.mask
        if batch.has_empty:
            mask = np.stack([np.zeros_like(mask), mask], axis=1).reshape(-1, mask.shape[1])
        is_packed = self._layout == Layout.PACKED
        if not fits(wanted.shape, self.dims, batch.mask):
            sizes = ", ".join(str(size) for size in self.dims or ())
            raise self._other_shape(batch, f"{list(wanted.shape)} in the original", f"[{sizes}, ...]")
        a = kept_rows(wanted, self.dims, batch.mask)
        if is_packed or fits(found.shape, self.dims, mask):
            b = packed_rows(found, mask) if is_packed else kept_rows(found, self.dims, mask)
            if (a.values.shape, a.element) == (b.values.shape, b.element):
                self._batches.append((batch, a, b))
                return
        expected = [len(a.values), *a.element] if is_packed else list(wanted.shape)
        raise self._other_shape(batch, f"{list(found.shape)} after rewriting", f"{expected}")

    def _other_shape(self, batch: Batch, found: str, expected: str) -> VerificationError:
        return VerificationError(
            f"output '{self.name}' has shape {found}, {expected} is expected (batch '{batch.name}', {self._interface} "
            f"interface, layout {self._layout}); please report this; --no-verify skips the check"
        )

    def largest_difference(self) -> float:
        """In parts of a column's root mean square. Raises VerificationError where it is too large."""
        filled = [item for item in self._batches if item[1].values.size]
        worst = 0.0
        scale = measure([a.values for _, a, _ in filled]) if filled else None
        for batch, a, b in filled:
            assert scale is not None
            difference = scale.differences(a.values, b.values)
            row, column = (int(at) for at in np.unravel_index(int(difference.argmax()), difference.shape))
            worst = max(worst, float(difference[row, column]))
            if not worst <= RELATIVE_TOLERANCE:
                allowed = RELATIVE_TOLERANCE * scale.size_of(a.values[row, column], column)
                raise VerificationError(
                    f"output '{self.name}'{_place(a, row, column)} (batch '{batch.name}'): the original gives "
                    f"{a.values[row, column]:.6g}, the rewritten model {b.values[row, column]:.6g}; allowed is a "
                    f"difference of {allowed:.3g}; please report this; --no-verify skips the check"
                )
        return worst


def _place(rows: Rows, row: int, column: int) -> str:
    names = {BATCH: "sequence", SLOTS: "position", BOTH: "slot"}
    places = [f", {names[axis]} {int(at)}" for axis, at in zip(rows.axes, rows.places[row], strict=True)]
    return "".join(places) + f", element {[int(at) for at in np.unravel_index(column, rows.element or (1,))]}"


def _run(
    session: ort.InferenceSession, names: Sequence[str], batch: Batch, kind: str, feeds: Mapping[str, Array]
) -> list[Array]:
    try:
        return list(session.run(list(names), dict(feeds)))
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise VerificationError(
            f"the {kind} model fails in onnxruntime on the batch '{batch.name}' (mask {list(batch.mask.shape)}): "
            f"{error}; check that the original runs on such a batch; --no-verify skips the check"
        ) from error


def _session(model: ModelProto, kind: str, weights: Weights | None) -> ort.InferenceSession:
    try:
        return open_session(model, weights)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise VerificationError(
            f"onnxruntime {ort.__version__} does not load the {kind} model: {error}; "
            f"check the original with onnx.checker; --no-verify skips the check"
        ) from error
