# SPDX-License-Identifier: Apache-2.0
"""TensorRT's contenders: our packed engine, the original as a padded engine, and both with GEMMs by TensorRT."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from padfree.contract.names import FP8
from padfree.onnx_tools import finish, without_functions
from padfree.onnx_tools.files import Model as OnnxModel
from padfree.runtime import Array, Session, SessionError, packed_feeds, split_outputs

from ..engine.build import build_engine
from ..engine.linear import TENSORRT
from ..errors import BuildError
from .contender import Contender, UnavailableError, Way
from .e4m3_gemms import activation_scales, with_e4m3_gemms
from .padded_engine import Typing, build_padded_engine, to_fp16
from .setup import PeerModel, Setup

PLAIN, GRAPH = "plain", "CUDA graph"


def packed_contender(setup: Setup) -> Contender:
    """The rewritten model's engine, tuned for the batch's tokens, or of the setup's profile."""
    options, name = _tuning_options(setup), "packed"
    if setup.profile is not None:
        options.update(asdict(setup.profile))
        name = "_".join(map(str, (setup.model.path.stem, name, *astuple(setup.profile))))

    def make(plan: Path) -> dict[str, Any]:
        return build_engine(setup.ours, plan, verify=False, **options)

    return _contender(setup, name, make, None, keep=setup.profile is not None)


def _tuning_options(setup: Setup) -> dict[str, Any]:
    """The options of a packed engine for the batch."""
    return {**setup.shape, "opt_tokens": setup.batch.tokens, "max_tokens": setup.batch.slots}


def packed_e4m3(setup: Setup) -> Contender:
    """The rewritten model with GEMMs in e4m3 by TensorRT; attention and norms are ours."""
    _require_fp8(setup)
    return _contender(
        setup,
        "packed_e4m3",
        lambda plan: build_engine(e4m3_of_packed(setup), plan, linear=TENSORRT, verify=False, **_tuning_options(setup)),
        None,
    )


def e4m3_of_packed(setup: Setup) -> onnx.ModelProto:
    """The rewritten model with Q/DQ around its GEMMs."""
    plain, half = without_functions(setup.model.packed), setup.model.half
    feeds = packed_feeds(setup.batch.ragged, setup.model.metadata)
    scales = activation_scales(plain, half, [feeds], attention=False)
    return finish(OnnxModel.of(with_e4m3_gemms(plain, scales, attention=False)), half)


def padded_e4m3(setup: Setup, *, attention: bool) -> Contender:
    """The original with GEMMs in e4m3 by TensorRT, tuned for B x S."""
    _require_fp8(setup)
    convert = partial(e4m3_of_padded, setup=setup, attention=attention)
    make = partial(build_padded_engine, setup.model.original, typing="strong", convert=convert, **setup.shape)
    name = f"padded_e4m3{'_attention' if attention else ''}"
    return _contender(setup, name, make, setup.batch.pad(setup.model.original_metadata))


def e4m3_of_padded(original: onnx.ModelProto, setup: Setup, *, attention: bool) -> onnx.ModelProto:
    """The original, of standard operators, in fp16 with Q/DQ around its GEMMs; calibrated one sequence at a time."""
    grids = setup.batch.pad(setup.model.original_metadata)
    batches = [{name: grid[at : at + 1] for name, grid in grids.items()} for at, _ in enumerate(setup.batch.seq_lens)]
    scales = activation_scales(original, "fp32", batches, attention=attention)
    return with_e4m3_gemms(to_fp16(original), scales, attention=attention)


def _require_fp8(setup: Setup) -> None:
    if setup.model.precision != FP8:
        raise UnavailableError(f"has GEMMs in e4m3, this is a comparison in {setup.model.precision}")


def padded_contender(setup: Setup, typing: Typing) -> Contender:
    """The original's engine, tuned for B x S; it stays in the folder for other batches of that shape."""
    if setup.model.half != "fp16":
        raise UnavailableError(f"is built in fp16, this is a comparison in {setup.model.precision}")
    make = partial(build_padded_engine, setup.model.original, typing=typing, **setup.shape)
    name = padded_name(setup.model, typing, len(setup.batch.seq_lens), setup.batch.seq_len)
    return _contender(setup, name, make, setup.batch.pad(setup.model.original_metadata), keep=True)


def padded_name(model: PeerModel, typing: Typing, batch: int, seq_len: int) -> str:
    """What the padded engine for B x S is called in a setup's folder, without .plan."""
    return f"{model.path.stem}_padded_{typing}_{batch}x{seq_len}"


def padded_interface(setup: Setup) -> Contender:
    """The rewritten model as a drop-in: the original's inputs and outputs, packed inside."""
    precision = setup.model.half
    make = partial(
        build_engine, setup.model.original, interface="padded", precision=precision, verify=False, **setup.shape
    )
    return _contender(setup, "padded_interface", make, setup.batch.pad(setup.model.original_metadata))


def _contender(
    setup: Setup,
    name: str,
    make: Callable[[Path], dict[str, Any]],
    feeds: dict[str, Array] | None,
    *,
    keep: bool = False,
) -> Contender:
    """Builds an engine and prepares its runs; `keep` leaves the plan in the folder, and reuses it."""
    plan, build_s = setup.folder / f"{name}.plan", 0.0
    if not (keep and plan.exists()):
        start = time.monotonic()
        try:
            make(plan)
        except (BuildError, SessionError) as error:
            raise UnavailableError(str(error)) from error
        build_s = round(time.monotonic() - start, 1)
    return contender_of(setup, plan, feeds, keep=keep, build_s=build_s)


def contender_of(
    setup: Setup, plan: Path, feeds: dict[str, Array] | None, *, keep: bool = True, build_s: float = 0.0
) -> Contender:
    """An engine as a contender; `feeds`: its inputs where it is not packed. `keep` leaves the plan in its folder."""
    session = Session(plan, device=setup.device)
    backend: Any = session.backend
    ragged = setup.batch.ragged
    runner = backend.prepare(feeds if feeds is not None else session.feeds(ragged))
    runner.enqueue()
    outputs = runner.download()
    ways: dict[str, Way] = {PLAIN: runner.time_ms}
    if backend.can_capture:
        ways[GRAPH] = partial(runner.time_ms, graph=runner.capture())

    def close() -> None:
        session.close()
        if not keep:
            plan.unlink(missing_ok=True)

    return Contender(split_outputs(outputs, ragged, session.metadata), ways, close, build_s)
