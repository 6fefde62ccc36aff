# SPDX-License-Identifier: Apache-2.0
"""Runs original and rewritten model in onnxruntime on ragged batches and compares what is not padding."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import ModelProto, helper

from .errors import VerificationError
from .fixed_axes import fixed_sizes
from .importing import token_inputs_of
from .sessions import open_session
from .weights import Weights

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# Allowed difference, as a part of the output's root mean square. Both models compute in float32, with sums of up to a
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
    Returns each output's largest difference, in parts of its root mean square.
    Raises VerificationError for the first output value that differs by more than RELATIVE_TOLERANCE.
    """
    rng = np.random.default_rng(seed)
    fixed = fixed_sizes(original, token_inputs_of(original))
    sessions = [_session(original, "original", weights[0]), _session(rewritten, "rewritten", weights[1])]
    worst: dict[str, float] = {}
    batches = make_batches(metadata, rng)
    for batch in batches:
        feeds, given = _feeds(original, metadata, batch, rng)
        names = [output["name"] for output in metadata["outputs"]]
        runs = [
            partial(_run, session, names, batch, kind)
            for session, kind in zip(sessions, ("original", "rewritten"), strict=True)
        ]
        per_token = [output["layout"] != "per_sequence" for output in metadata["outputs"]]
        wanted, found = fixed.run(runs[0], feeds, per_token), runs[1](given)
        for output, a, b in zip(metadata["outputs"], wanted, found, strict=True):
            if output["layout"] == "per_sequence" and not batch.keeps_first_slot:
                continue  # a head that reads the masked first slot cannot be reproduced
            error = _compare(output, a, b, batch, metadata["interface"])
            worst[output["name"]] = max(worst.get(output["name"], 0.0), error)
    logger.info("verified on %d batches: largest difference %.1e of an output", len(batches), max(worst.values()))
    return worst


def sample_feeds(original: ModelProto, metadata: Mapping[str, Any], *, seed: int = 0) -> dict[str, Array]:
    """Inputs of the rewritten model for one of the batches that `verify` takes, a ragged one."""
    rng = np.random.default_rng(seed)
    batch = next(item for item in make_batches(metadata, rng) if item.name == "ragged")
    return _feeds(original, metadata, batch, rng)[1]


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


def _prefix_mask(lengths: Sequence[int]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.arange(max(lengths)) < np.array(lengths)[:, None])


def _original_feeds(
    original: ModelProto, metadata: Mapping[str, Any], batch: Batch, rng: np.random.Generator
) -> dict[str, Array]:
    """The original's inputs; the one that is no token input of the rewritten model is the mask."""
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
            refused = set(excluded.get(item.name, ()))
            other = next(value for value in range(len(refused) + 1) if value not in refused)
            feeds[item.name] = np.where(np.isin(ids, list(refused)) & batch.mask, other, ids).astype(dtype)
        else:
            feeds[item.name] = batch.mask.astype(dtype)
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


def _compare(output: Mapping[str, Any], a: Array, b: Array, batch: Batch, interface: str) -> float:
    """Largest difference in parts of the output's root mean square. Raises VerificationError."""
    name, layout = output["name"], output["layout"]
    sequences, positions = np.nonzero(batch.mask)
    if batch.has_empty and layout != "packed":
        b = b[1::2]
    if layout == "per_sequence":
        sequences, positions = np.arange(len(a)), np.full(len(a), -1)
    else:
        a = a[batch.mask]
        b = b[: len(a)] if layout == "packed" else b[:, : batch.mask.shape[1]][batch.mask]
    if a.shape != b.shape:
        raise VerificationError(
            f"output '{name}' has shape {list(b.shape)} after rewriting, {list(a.shape)} is expected (batch "
            f"'{batch.name}', {interface} interface, layout {layout}); please report this; --no-verify skips the check"
        )
    if a.size == 0:
        return 0.0
    wanted, found = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.sqrt(np.nanmean(wanted**2))) or 1.0
    difference = np.abs(wanted - found)
    difference[np.isnan(wanted) & np.isnan(found)] = 0
    difference[np.isnan(difference)] = np.inf
    place = np.unravel_index(int(difference.argmax()), difference.shape)
    worst = float(difference[place]) / scale
    if worst > RELATIVE_TOLERANCE:
        position = "" if positions[place[0]] < 0 else f", position {positions[place[0]]}"
        raise VerificationError(
            f"output '{name}', sequence {sequences[place[0]]}{position}, element {[int(i) for i in place[1:]]} (batch "
            f"'{batch.name}'): the original gives {wanted[place]:.6g}, the rewritten model {found[place]:.6g}; allowed "
            f"is a difference of {RELATIVE_TOLERANCE * scale:.3g}; please report this; --no-verify skips the check"
        )
    return worst


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
