# SPDX-License-Identifier: Apache-2.0
"""Builds an engine with each choice of GEMMs and norms, times all of them, and keeps the fastest."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from padfree.onnx_tools import standard_model
from padfree.onnx_tools.files import Storage, is_rewritten
from padfree.onnx_tools.operators import OPERATORS
from padfree.runtime import Profile, parse_metadata
from padfree.runtime.gpu import Device

from ..engine_check.batches import make_batch
from ..engine_check.checking import open_engine
from ..folders.source import Say
from .engine_builder import BuiltEngine, EngineBuilder
from .linear import AUTO, FOLDED, OPERATOR, PADFREE, SEPARATE, TENSORRT, TUNED_MAJOR, linear_of, norms_of
from .measurements import Measurements, PaddedTime, TimedChoice, TimedRequest, requests_of
from .options import BuildOptions
from .phases import MEASURING, WAITING, Phases
from .plan_writing import describe_plan
from .preparation import metadata_of
from .preparation_process import ModelSource, PreparedModel, open_source, preparing
from .profile import ProfileOptions, choose_profile, shape_ranges

CHOICES = ((PADFREE, FOLDED), (PADFREE, SEPARATE), (TENSORRT, SEPARATE))
"""GEMMs and norms that are tried, at most one engine each; of equally fast ones the first is kept."""
WARM_UP_MS, TIMED_MS = 50.0, 200.0
"""Time that the runs of one request take together: those that wake an idle GPU, then those that count."""
LEAST_RUNS, MOST_RUNS = 10, 200


@dataclass(frozen=True)
class Build:
    """An engine and its plan's metadata."""

    engine: BuiltEngine
    description: dict[str, Any]

    @property
    def choice(self) -> tuple[str, str]:
        """Whose GEMMs it has, and its norms."""
        engine = self.description["engine"]
        return engine["linear"], engine["norms"]


def build_prepared(preparation: PreparedModel, profile: Profile, builder: EngineBuilder) -> Build:
    """The engine of a model that is ready for TensorRT. Raises BuildError."""
    raw = metadata_of(preparation.model)
    engine = builder.build(
        preparation.model,
        shape_ranges(parse_metadata(raw, "the rewritten model"), profile),
        content=preparation.content,
        file=preparation.file,
        drop=preparation.drop,
    )
    choices = {"linear": linear_of(preparation.model), "norms": norms_of(preparation.model)}
    return Build(engine, describe_plan(engine, raw, profile, builder, choices))


def is_measured(options: BuildOptions, device: Device, build: Build) -> bool:
    """Whether other choices are built and timed, too.

    They are where the user left the choice to padfree, on GPUs for which its kernels are not tuned or wherever the user
    asks for it, if there is a choice: not where the model's file has PadfreeLinear already, or its precision none.
    """
    if options.linear != AUTO or options.measure is False:
        return False
    is_tuned = device.major == TUNED_MAJOR
    if build.description["precision"] not in OPERATORS[OPERATOR].plugin_precisions:
        return False
    return options.measure is True if is_tuned else build.choice[0] == TENSORRT


def fastest_build(
    first: Build, model: ModelSource, options: BuildOptions, builder: EngineBuilder, profile: Profile, say: Say
) -> Build:
    """The fastest of an engine and those with other choices; its metadata has the times of all.

    Args:
        first: the engine with the choices that padfree makes without measuring.
        model: what it was built from.
        options: how.
        builder: TensorRT's builder, whose phases get the seconds.
        profile: what the engines take in one run.
        say: gets what is measured, and whether packing wins.
    """
    say(
        f"measuring on {builder.device.name} which GEMMs and norms are fastest, with up to {len(CHOICES)} engines "
        "(--no-measure builds one)"
    )
    requests = requests_of(profile)
    outcomes: dict[tuple[str, str], Build | str] = {first.choice: first}
    for choice in _others(first, options):
        if choice not in outcomes:
            outcome = _outcome(choice, model, options, builder, profile)
            # A model without norms to fold, or without GEMMs, gives an engine with other choices.
            outcomes.setdefault(outcome.choice if isinstance(outcome, Build) else choice, outcome)
    order = [choice for choice in CHOICES if choice in outcomes]
    candidates = tuple(_candidate(choice, outcomes[choice], requests, builder) for choice in order)
    padded = _time_padded(model, requests[-1], builder, first.description["precision"])
    measurements = Measurements(requests, candidates, padded)
    for line in (*map(partial(_line, requests=requests), candidates), measurements.warning()):
        if line:
            say(line)
    number = measurements.best()
    build = first if number is None else outcomes[order[number]]
    assert isinstance(build, Build)  # it was timed
    build.description["engine"]["measured"] = measurements.to_dict()
    return build


def _others(first: Build, options: BuildOptions) -> Iterator[tuple[str, str]]:
    for choice in CHOICES:
        if choice != first.choice and (choice[1] == SEPARATE or options.norms == FOLDED):
            yield choice


def _outcome(
    choice: tuple[str, str], model: ModelSource, options: BuildOptions, builder: EngineBuilder, profile: Profile
) -> Build | str:
    """The engine, or why there is none."""
    linear, norms = choice
    options_of_choice = replace(options, linear=linear, norms=norms, verify=False)
    try:
        with preparing(model, options_of_choice, lambda: builder.device, say=lambda _: None) as task:
            with builder.phases.measure(WAITING):
                preparation = task()
            return build_prepared(preparation, profile, builder)
    except Exception as error:  # the first engine is there
        return _reason(error)


def _candidate(
    choice: tuple[str, str], outcome: Build | str, requests: tuple[TimedRequest, ...], builder: EngineBuilder
) -> TimedChoice:
    if isinstance(outcome, str):
        return TimedChoice(*choice, problem=outcome)
    try:
        return TimedChoice(*choice, _time(outcome, requests, builder))
    except Exception as error:  # an engine that cannot be timed is no reason to build none
        return TimedChoice(*choice, problem=_reason(error))


def _time(build: Build, requests: tuple[TimedRequest, ...], builder: EngineBuilder) -> tuple[float, ...]:
    with builder.phases.measure(MEASURING):
        return time_engine(build.engine.plan, build.description, requests, builder.device.index)


def time_engine(
    content: bytes | memoryview, description: Mapping[str, Any], requests: tuple[TimedRequest, ...], device: int
) -> tuple[float, ...]:
    """The median time in ms of each request on the GPU, in a CUDA graph where the engine allows it.

    Raises:
        SessionError: it does not run.
    """
    metadata = parse_metadata(description, "the new engine")
    backend: Any = open_engine(Path("the new engine"), content, metadata, device)
    try:
        times = []
        for request in requests:
            with backend.prepare(make_batch(list(request.seq_lens), metadata).inputs(metadata)) as run:
                graph = run.capture() if backend.can_capture else None
                times_ms = run.time_ms(LEAST_RUNS, graph=graph)
                for total_ms in (WARM_UP_MS, TIMED_MS):
                    runs = round(total_ms / max(statistics.median(times_ms), 1e-3))
                    times_ms = run.time_ms(max(LEAST_RUNS, min(MOST_RUNS, runs)), graph=graph)
                times.append(round(statistics.median(times_ms), 4))
        return tuple(times)
    finally:
        backend.close()


def _time_padded(model: ModelSource, request: TimedRequest, builder: EngineBuilder, precision: str) -> PaddedTime:
    """The short text's time in TensorRT's engine of the model as it was exported, which is built for it alone."""
    from ..peers.padded_engine import padded_metadata, to_fp16  # which imports the builder of engines

    if precision != "fp16":
        return PaddedTime(problem=f"the padded model is built in fp16, and this one is in {precision}")
    try:
        exported = open_source(model, Storage.MEMORY, Phases(), lambda _: None).whole()
        if is_rewritten(exported):
            return PaddedTime(problem="the padded model is not known: the engine is built from a rewritten one")
        original = standard_model(exported)
        raw = padded_metadata(original)
        metadata = parse_metadata(raw, "the original model")
        profile = choose_profile(metadata, ProfileOptions(max_batch=1, max_seq_len=sum(request.seq_lens)))
        engine = builder.build(to_fp16(original), shape_ranges(metadata, profile))
        choices = {"linear": TENSORRT, "norms": SEPARATE}
        build = Build(engine, describe_plan(engine, raw, profile, builder, choices))
        return PaddedTime(_time(build, (request,), builder)[0])
    except Exception as error:  # the original, not padfree, may be at fault, in whatever library
        return PaddedTime(problem=_reason(error))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _line(item: TimedChoice, requests: tuple[TimedRequest, ...]) -> str:
    name = f"GEMMs by {item.linear}, norms {item.norms}"
    if item.problem:
        return f"{name}: not measured: {item.problem}"
    pairs = zip(item.times_ms, requests, strict=True)
    return f"{name}: {', '.join(f'{time_ms:.3g} ms for {request.text}' for time_ms, request in pairs)}"
