# SPDX-License-Identifier: Apache-2.0
"""TensorRT's contenders: our packed engine, and the original as a padded engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import Any

from padfree.runtime import Session, SessionError
from padfree.runtime.feeds import Array, split_outputs

from ..engine.build import build_engine
from ..errors import BuildError
from .contender import Contender, UnavailableError, Way
from .padded import Typing, build_padded_engine
from .setup import Model, Setup

PLAIN, GRAPH = "plain", "CUDA graph"


def packed(setup: Setup) -> Contender:
    """The rewritten model's engine, tuned for the batch's tokens, or of the setup's profile."""
    options: dict[str, Any] = {**setup.shape, "opt_tokens": setup.batch.tokens, "max_tokens": setup.batch.slots}
    name = "packed"
    if setup.profile is not None:
        options.update(asdict(setup.profile))
        name = "_".join(map(str, (setup.model.path.stem, name, *astuple(setup.profile))))

    def make(plan: Path) -> dict[str, Any]:
        return build_engine(setup.ours, plan, **options)

    return _contender(setup, name, make, None, keep=setup.profile is not None)


def padded(setup: Setup, typing: Typing) -> Contender:
    """The original's engine, tuned for B x S; it stays in the folder for other batches of that shape."""
    if setup.model.half != "fp16":
        raise UnavailableError(f"is built in fp16, this is a comparison in {setup.model.precision}")
    make = partial(build_padded_engine, setup.model.original, typing=typing, **setup.shape)
    name = padded_name(setup.model, typing, len(setup.batch.seq_lens), setup.batch.seq_len)
    return _contender(setup, name, make, setup.batch.padded(setup.model.original_metadata), keep=True)


def padded_name(model: Model, typing: Typing, batch: int, seq_len: int) -> str:
    """What the padded engine for B x S is called in a setup's folder, without .plan."""
    return f"{model.path.stem}_padded_{typing}_{batch}x{seq_len}"


def padded_interface(setup: Setup) -> Contender:
    """The rewritten model as a drop-in: the original's inputs and outputs, packed inside."""
    precision = setup.model.half
    make = partial(
        build_engine, setup.model.original, interface="padded", precision=precision, verify=False, **setup.shape
    )
    return _contender(setup, "padded_interface", make, setup.batch.padded(setup.model.original_metadata))


def _contender(
    setup: Setup,
    name: str,
    make: Callable[[Path], dict[str, Any]],
    feeds: dict[str, Array] | None,
    *,
    keep: bool = False,
) -> Contender:
    """Builds an engine and prepares its runs; `keep` leaves the plan in the folder and takes one that is there."""
    plan, build_s = setup.folder / f"{name}.plan", 0.0
    if not (keep and plan.exists()):
        start = time.monotonic()
        try:
            make(plan)
        except (BuildError, SessionError) as error:
            raise UnavailableError(str(error)) from error
        build_s = round(time.monotonic() - start, 1)
    session = Session(plan, device=setup.device)
    backend: Any = session.backend
    ragged = setup.batch.ragged
    prepared = backend.prepare(feeds if feeds is not None else session.feeds(ragged))
    prepared.enqueue()
    outputs = prepared.download()
    ways: dict[str, Way] = {PLAIN: prepared.time_ms}
    if backend.can_capture:
        ways[GRAPH] = partial(prepared.time_ms, graph=prepared.capture())

    def close() -> None:
        session.close()
        if not keep:
            plan.unlink(missing_ok=True)

    return Contender(split_outputs(outputs, ragged, session.metadata), ways, close, build_s)
