# SPDX-License-Identifier: Apache-2.0
"""The optimisation profile: from a model's limits and the user's options to numbers that fit each other."""

from __future__ import annotations

from dataclasses import dataclass

from padfree.contract.metadata import InputInfo
from padfree.contract.names import PER_SEQUENCE, PREFIX
from padfree.runtime import Metadata, Profile

from ..errors import BuildError

DEFAULT_MAX_BATCH = 32
DEFAULT_MAX_SEQ_LEN = 512
DEFAULT_MAX_TOKENS = 65536  # bounds activation memory where the user named no token count
TYPICAL_FILL = 0.6  # mean length over maximum length of uniform lengths in [0.2 S, S]


@dataclass(frozen=True)
class ProfileOptions:
    """What the user asked for; None lets padfree choose."""

    max_batch: int | None = None
    max_seq_len: int | None = None
    max_tokens: int | None = None
    opt_tokens: int | None = None


@dataclass(frozen=True)
class ShapeRange:
    """Minimum, optimum and maximum shape of one input."""

    name: str
    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]


def choose_profile(metadata: Metadata, options: ProfileOptions) -> Profile:
    """The profile that a build uses.

    Raises:
        BuildError: the options contradict the model or each other; the message says which option to pass.
    """
    for option, value in (
        ("--max-batch", options.max_batch),
        ("--max-seq-len", options.max_seq_len),
        ("--max-tokens", options.max_tokens),
        ("--opt-tokens", options.opt_tokens),
    ):
        if value is not None and value < 1:
            raise BuildError(f"profile: {option} {value}, allowed: 1 or more; pass {option} 1 or leave it out")
    for option, value in (("--max-tokens", options.max_tokens), ("--opt-tokens", options.opt_tokens)):
        if metadata.interface == "padded" and value is not None:
            raise BuildError(
                f"profile: {option} {value} given for a padded engine, whose tokens follow from --max-batch times "
                f"--max-seq-len; leave {option} out, or build with --interface packed"
            )
    max_batch = options.max_batch or DEFAULT_MAX_BATCH
    max_seq_len = _max_seq_len(metadata, options)
    reachable = max_batch * max_seq_len
    max_tokens = options.max_tokens or reachable
    if options.max_tokens is None and metadata.is_packed:
        max_tokens = min(reachable, max(DEFAULT_MAX_TOKENS, max_seq_len))
    if max_tokens > reachable:
        raise BuildError(
            f"profile max {max_tokens} tokens > {max_batch} sequences x {max_seq_len} tokens = {reachable}; "
            f"pass --max-tokens {reachable}, or a larger --max-batch"
        )
    if max_tokens < max_seq_len:
        raise BuildError(
            f"profile max {max_tokens} tokens < longest sequence {max_seq_len}: it would never fit; "
            f"pass --max-seq-len {max_tokens} or --max-tokens {max_seq_len}"
        )
    opt_tokens = options.opt_tokens or max(1, round(TYPICAL_FILL * max_tokens))
    if opt_tokens > max_tokens:
        raise BuildError(
            f"profile optimum {opt_tokens} tokens > maximum {max_tokens}; pass --opt-tokens {max_tokens} or less"
        )
    return Profile(1, opt_tokens, max_tokens, max_batch, max_seq_len)


def shape_ranges(metadata: Metadata, profile: Profile) -> list[ShapeRange]:
    """The range of every input's shape, in the model's order."""
    return [_shape_range(metadata.interface, item, profile) for item in metadata.inputs]


def _max_seq_len(metadata: Metadata, options: ProfileOptions) -> int:
    limit = metadata.max_positions
    name = metadata.ids_input().name
    if options.max_seq_len is not None:
        if limit is not None and options.max_seq_len > limit:
            raise BuildError(
                f"profile max {options.max_seq_len} > model limit {limit} for '{name}'; pass --max-seq-len {limit}"
            )
        return options.max_seq_len
    max_seq_len = limit or DEFAULT_MAX_SEQ_LEN
    return min(max_seq_len, options.max_tokens) if options.max_tokens else max_seq_len


def _shape_range(interface: str, item: InputInfo, profile: Profile) -> ShapeRange:
    sizes: list[tuple[int, ...]]
    if item.shared and interface == "padded":
        sizes = [()] * 3
    elif item.role in ("seq_lens", PER_SEQUENCE, PREFIX):
        sizes = [(1,), (profile.max_batch,), (profile.max_batch,)]
    elif interface == "padded":
        full = (profile.max_batch, profile.max_seq_len)
        sizes = [(1, 1), full, full]
    elif item.role in ("tokens", "unread"):
        sizes = [(profile.min_tokens,), (profile.opt_tokens,), (profile.max_tokens,)]
    elif item.role == "cu_seqlens":
        sizes = [(2,), (profile.max_batch + 1,), (profile.max_batch + 1,)]
    else:
        sizes = [(1,), (profile.max_seq_len,), (profile.max_tokens,)]  # lowering.bound_max_seqlen says why
    minimum, optimum, maximum = ((*size, *item.trailing_shape) for size in sizes)
    return ShapeRange(item.name, minimum, optimum, maximum)
