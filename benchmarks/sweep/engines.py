# SPDX-License-Identifier: Apache-2.0
"""Builds the padded engines that a sweep needs before it runs: `python -m benchmarks.sweep --build-only`.

These builds take most of a sweep's time, mostly on the host: several processes can share the work, each with a part.
TensorRT times kernels while it builds, so do not measure anything on the same GPU meanwhile.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import SweepCase

PEER = "tensorrt"


@dataclass(frozen=True)
class Part:
    """Every `count`-th element, starting with the `number`-th; number counts from 1."""

    number: int = 1
    count: int = 1

    @staticmethod
    def read(text: str) -> Part:
        """Parses a part such as "2/3". Raises argparse.ArgumentTypeError for anything else."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise argparse.ArgumentTypeError(f"{text!r}, allowed: K/N with K from 1 to N, like 2/3")
        return Part(int(match[1]), int(match[2]))

    @property
    def slice(self) -> slice:
        """The elements of the part, as a slice of a list."""
        return slice(self.number - 1, None, self.count)


@dataclass(frozen=True)
class PaddedShape:
    """A padded engine's model, B and S."""

    model: str
    batch: int
    seq_len: int


def padded_shapes(cases: Iterable[SweepCase]) -> list[PaddedShape]:
    """The padded engines that these cases measure, each once, in order."""
    shapes = [PaddedShape(case.model, case.batch, case.seq_len) for case in cases if PEER in case.peers]
    return list(dict.fromkeys(shapes))


def build_padded(
    cases: Iterable[SweepCase],
    part: Part,
    *,
    read_model: Callable[[str], Any],
    folder: Path,
    timing_cache: str,
    deadline: float,
    say: Callable[[str], None],
) -> int:
    """Builds one part of the cases' padded engines, except those that the folder has.

    Args:
        cases: what will be measured.
        part: this process's part of the engines.
        read_model: returns the padfree.builder.peers.setup.PeerModel of a name.
        folder: where the sweep looks for engines.
        timing_cache: a file of this process's own, or "default".
        deadline: on time.monotonic()'s clock; no build starts after it.
        say: prints a line.

    Returns:
        How many could not be built.
    """
    from padfree.builder.peers.engines import padded_name
    from padfree.builder.peers.padded_engine import build_padded_engine

    missing = 0
    shapes = padded_shapes(cases)[part.slice]
    for count, shape in enumerate(shapes, 1):
        model = read_model(shape.model)
        name = padded_name(model, "weak", shape.batch, shape.seq_len)
        plan = folder / f"{name}.plan"
        if plan.exists():
            continue
        start = time.monotonic()
        if start > deadline:
            say(f"time is up: {len(shapes) - count + 1} engines left, run again to build them")
            return missing + len(shapes) - count + 1
        try:
            build_padded_engine(
                model.original,
                plan,
                max_batch=shape.batch,
                max_seq_len=shape.seq_len,
                typing="weak",
                timing_cache=timing_cache,
            )
            say(f"[{count}/{len(shapes)}] built {name}; {time.monotonic() - start:.1f} s")
        except Exception as error:  # the sweep reports it as unavailable
            missing += 1
            say(f"[{count}/{len(shapes)}] {name}: FAILED: {type(error).__name__}: {error}")
    return missing
