# SPDX-License-Identifier: Apache-2.0
"""Compares the original and the rewritten model on ragged batches, or says why they cannot be the same."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis import IdRule, SpecialIds, rules_for
from ..errors import VerificationError
from ..files import Model
from .compared_output import DifferError
from .model_pair import ModelPair, OriginalFailsError, Progress
from .repeated_layers import ShortenedModels
from .sample_batches import has_no_mask, token_limits

logger = logging.getLogger(__name__)

_MIXES = (
    "the original's answers for a sequence depend on the others of its batch, for example because it takes a "
    "mean over the batch, its size or its longest length"
)


class PaddingMattersError(VerificationError):
    """Raised when the original's own answers for tokens depend on what padded slots hold."""


@dataclass(frozen=True)
class Verification:
    """What a verification found.

    errors: each output's largest difference relative to a column's root mean square (see agreement.py).
    rules: input -> the rule that its ids had to follow; empty: any ids will do.
    shortened_models: what long sequences were compared on, where repeated layers were left out for them.
    parts: how many parts the rewritten model ran in, if its weights are too large to be held at once; otherwise 1.
    """

    errors: Mapping[str, float]
    rules: Mapping[str, IdRule]
    shortened_models: ShortenedModels | None
    parts: int = 1


def verify_ids(
    original: Model,
    rewritten: Model,
    metadata: Mapping[str, Any],
    *,
    seed: int = 0,
    whole: bool = False,
    special: Mapping[str, SpecialIds] | None = None,
    on_progress: Progress = lambda _done, _of: None,
) -> Verification:
    """Compares the two models on seeded ragged batches; padded slots hold random ids, or such as rules that it finds.

    Long sequences, and batches with much padding, are compared without layers that repeat others (repeated_layers.py),
    except with `whole`, or if those models differ: then the whole ones decide. In models whose weights are read anew
    for every run, only ragged sequences go through all layers.

    The rewritten model carries function bodies and is still float32; `metadata` is the object that goes into it.
    Infinities, NaNs and integers have to be equal, and stand-ins for infinity must match each other.
    Raises VerificationError for the first output value that differs by more than RELATIVE_TOLERANCE.

    If the two models differ, and the original's answers change with the ids in padded slots, or it cannot run on them,
    it looks for certain ids (`special`): then ids are tried that end in one of these, with padding that is none of
    them. If it looks for none, such an original is refused. So is one that is to be packed and whose answers change
    with how much padding a batch has: packed batches have none.
    """
    models = ModelPair(original, rewritten, metadata, whole=whole, on_progress=on_progress)
    try:
        worst = models.compare(metadata, seed)
    except VerificationError as error:
        choices = rules_for(special or {}, token_limits(metadata))
        if isinstance(error, DifferError):
            _refuse_known(error, models, metadata, seed, looks_for_ids=bool(choices))
        if not choices or not models.padding_is_read(metadata, seed):
            raise
        first_error = error
    else:
        if metadata["interface"] == "packed":
            models.check_wider(metadata, seed)
            if models.mixes_sequences(metadata, seed):
                logger.warning("%s, and so do the packed model's", _MIXES)
        return Verification(worst, {}, models.shortened_models, models.parts)
    return _verify_with_rules(models, metadata, choices, seed, first_error)


def _refuse_known(
    error: DifferError, models: ModelPair, metadata: Mapping[str, Any], seed: int, *, looks_for_ids: bool
) -> None:
    """Raises VerificationError with the reason why the models differ, where it is one of those that are known."""
    if has_no_mask(metadata) and metadata["interface"] == "packed":
        raise VerificationError(
            f"{error.facts}; no input tells what is padding, and the model computes with the length of its batch, "
            "as where it divides a sum by it, which packed sequences do not share; export it with an "
            "attention_mask, or choose the padded interface, for batches of one length"
        ) from error
    if models.mixes_sequences(metadata, seed):
        raise VerificationError(
            f"{error.facts}; {_MIXES}, and packed batches may hold sequences without tokens; export it without "
            "that, choose the padded interface, or skip the check with --no-verify"
        ) from error
    if not looks_for_ids and models.depends_on_padding(metadata, seed):
        raise PaddingMattersError(
            f"{error.facts}; the original's own answers depend on its padding here, as where attention scores "
            "outgrow the mask's constant or padded slots overflow, and no packed graph can give the same; export "
            "it with a mask of -inf or the type's lowest number; --no-verify skips the check"
        ) from error


def _verify_with_rules(
    models: ModelPair,
    metadata: Mapping[str, Any],
    choices: Sequence[Mapping[str, IdRule]],
    seed: int,
    first_error: VerificationError,
) -> Verification:
    """Compares with ids that fit the first of these rules with which the models agree; `first_error` is without any.

    Raises PaddingMattersError where they differ with all.
    """
    errors = [first_error]
    for rules in choices:
        entry = {**metadata, "id_rules": {name: rule.to_dict() for name, rule in rules.items()}}
        try:
            worst = models.compare(entry, seed)
            models.check_wider(entry, seed)
        except VerificationError as error:
            errors.append(error)
            continue
        text = "; ".join(f"'{name}' {rule}" for name, rule in rules.items())
        logger.warning("the original reads the ids of padded slots; it was verified with ids that fit it: %s", text)
        return Verification(worst, rules, models.shortened_models, models.parts)
    telling = next((error for error in errors if not isinstance(error, OriginalFailsError)), first_error)
    id_inputs = ", ".join(f"'{name}'" for name in choices[0])
    raise PaddingMattersError(
        f"{telling} (the original looks for ids in {id_inputs}, and its answers depend on those in padded slots; "
        f"{len(choices)} kinds of ids were tried)"
    )


def verify_assumed(
    original: Model,
    rewritten: Model,
    metadata: Mapping[str, Any],
    rules: Mapping[str, IdRule],
    *,
    seed: int,
    whole: bool,
    on_progress: Progress,
) -> Verification:
    """As verify_ids, with ids that follow these rules, in padding too. Raises VerificationError."""
    models = ModelPair(original, rewritten, metadata, whole=whole, on_progress=on_progress)
    entry = {**metadata, "id_rules": {name: rule.to_dict() for name, rule in rules.items()}}
    worst = models.compare(entry, seed)
    if metadata["interface"] == "packed":
        models.check_wider(entry, seed)
    return Verification(worst, rules, models.shortened_models, models.parts)
