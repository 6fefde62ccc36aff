# SPDX-License-Identifier: Apache-2.0
"""Builds an engine from an ONNX model: rewrite, profile, TensorRT, checks, plan and metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from padfree.contract.names import ONNX_SUFFIX, is_onnx
from padfree.onnx_tools.files import Storage, is_rewritten, open_model
from padfree.runtime import SessionError, parse_metadata
from padfree.runtime.gpu import Device, device_code, import_tensorrt, plugin_library
from rich.progress import Progress

from ..destinations import check_destinations, sidecar_destination
from ..engine_check.checking import check_engine
from ..engine_check.commands import compare_command
from ..engine_check.reference import Reference
from ..errors import BuildError
from ..folders.companions import kept_files, tokenizer_destination
from ..folders.folder_model import FolderModel
from ..folders.source import Say
from ..gpu_files import no_gpu
from . import linear_tables
from .candidates import Build, build_prepared, fastest_build, is_measured
from .engine_builder import DEFAULT_CACHE, EngineBuilder, TacticOptions
from .linear import AUTO, EIGHT_BIT_OPERATORS, FOLDED, eight_bit_problem
from .options import BuildOptions
from .phases import COMPARING, REFERENCE, WAITING, Phases
from .plan_writing import write_described
from .preparation import metadata_of
from .preparation_messages import to_stderr
from .preparation_process import ModelSource, preparing
from .profile import ProfileOptions, choose_profile
from .progress import watcher_of
from .shared_builder import SharedBuilder


def build_engine(
    model: ModelSource,
    plan_path: str | Path,
    options: BuildOptions | None = None,
    *,
    interface: str | None = None,
    precision: str | None = None,
    strict: bool = False,
    verify: bool | str = True,
    mask: str | None = None,
    masks: str | None = None,
    padding_id: int | None = None,
    shared_prefixes: bool = False,
    max_batch: int | None = None,
    max_seq_len: int | None = None,
    max_tokens: int | None = None,
    opt_tokens: int | None = None,
    timing_cache: str | Path | None = DEFAULT_CACHE,
    workspace_bytes: int | None = None,
    optimization_level: int | None = None,
    linear: str = AUTO,
    norms: str = FOLDED,
    measure: bool | None = None,
    device: int = 0,
    progress: Progress | None = None,
    builder: EngineBuilder | SharedBuilder | None = None,
    origin: Sequence[str] | None = None,
    say: Say = to_stderr,
) -> dict[str, Any]:
    """Builds a plan, with its metadata in `<plan>.json` beside it.

    Before it is written, it runs ragged batches on the GPU, and its answers are compared with onnxruntime's.

    Args:
        model: an exported model (it is rewritten first), one that `rewrite` made, or a folder's model.
        plan_path: where the plan goes; written whole or not at all.
        options: one value for all of the keywords from `interface` to `device`.
        interface: see BuildOptions.
        precision: see BuildOptions.
        strict: see BuildOptions.
        verify: see BuildOptions.
        mask: BuildOptions.mask_input.
        masks: BuildOptions.mask_form.
        padding_id: see BuildOptions.
        shared_prefixes: see BuildOptions.
        max_batch: most sequences in one run (32).
        max_seq_len: longest sequence in tokens (the model's positions).
        max_tokens: most tokens in one run (max_batch * max_seq_len, bounded); packed engines only.
        opt_tokens: the token count that TensorRT tunes for (0.6 of the most).
        timing_cache: a file, "default" for one in the user's cache folder, None for none.
        workspace_bytes: limit of TensorRT's scratch memory; None is all of the GPU.
        optimization_level: TensorRT's builder effort, 0..5; None is TensorRT's default.
        linear: see BuildOptions.
        norms: see BuildOptions.
        measure: see BuildOptions.
        device: CUDA device number.
        progress: rich bars that show the build's phases; those of `StageProgress` also show the stages around them.
        builder: TensorRT's builder of an earlier build in this process, as it takes seconds to start; its own GPU,
            timing cache and options hold, not those given here. A SharedBuilder starts with the first build that it is
            given to.
        origin: where users do not know `model`: what it was made from, as words of a command, with their options.
        say: gets what the user should know of a folder's model.

    Returns:
        The metadata object that was written beside the plan; with `verify`, "check" in it has the engine's errors.

    Raises:
        BuildError: profile, machine, TensorRT, disk, or an engine whose answers are wrong;
        padfree.onnx_tools.RewriteError: the model; padfree.runtime.SessionError: no TensorRT, no usable GPU, no plugin
        library.
    """
    keywords = BuildOptions(
        interface,
        precision,
        strict,
        verify,
        mask,
        masks,
        padding_id,
        shared_prefixes,
        linear,
        norms,
        measure,
        ProfileOptions(max_batch, max_seq_len, max_tokens, opt_tokens),
        TacticOptions(workspace_bytes, optimization_level, timing_cache),
        device,
    )
    if options is not None and keywords != BuildOptions():
        raise BuildError("options are given as a value and as keywords; give one of the two")
    return _build(model, Path(plan_path), options or keywords, progress, builder, origin, say)


def _build(
    model: ModelSource,
    plan: Path,
    options: BuildOptions,
    progress: Progress | None,
    builder: EngineBuilder | SharedBuilder | None,
    origin: Sequence[str] | None,
    say: Say,
) -> dict[str, Any]:
    check_plan_destinations([(model, plan)], options.tactics.timing_cache)
    shared_builder = builder if isinstance(builder, SharedBuilder) else SharedBuilder()
    device = options.device
    with preparing(model, options, partial(_gpu, device), progress=progress, say=say) as preparation_task:
        engine_builder = (
            builder if isinstance(builder, EngineBuilder) else shared_builder.get(device, options.tactics, progress)
        )
        if isinstance(engine_builder, Exception) and _is_exported(model):  # before it is rewritten in vain
            check_machine(device, operators=())
            raise engine_builder
        wait_phases = Phases(watcher_of(progress))
        with wait_phases.measure(WAITING):
            preparation = preparation_task()
        raw = metadata_of(preparation.model)
        metadata = parse_metadata(raw, "the rewritten model")
        path = _path_of(model)
        more_files = [] if path is None else kept_files(path, plan, metadata)
        profile = choose_profile(metadata, options.profile)
        check_machine(device, operators=metadata.plugins)
        if isinstance(engine_builder, Exception):
            raise engine_builder
        engine_builder.phases.seconds |= {**wait_phases.seconds, **preparation.seconds}
        if metadata.plugins:
            plugin_library.load()
        build = build_prepared(preparation, profile, engine_builder)
        if is_measured(options, engine_builder.device, build):
            build = fastest_build(build, model, options, engine_builder, profile, say)
        if preparation.reference is not None:
            compare = partial(compare_command, model, origin, metadata, options)
            build.description["check"] = _check(plan, build, preparation.reference, engine_builder, compare)
    return write_described(plan, build.engine, build.description, engine_builder, more_files)


def _is_exported(model: ModelSource) -> bool:
    """Whether a folder or a file has to be rewritten. Raises padfree.onnx_tools.ModelFileError where a file is none."""
    if isinstance(model, (str, Path)):
        return not is_rewritten(open_model(model, Storage.MAP).proto)
    return isinstance(model, FolderModel)


def _check(
    plan: Path,
    build: Build,
    reference: Callable[[], Reference],
    builder: EngineBuilder,
    compare: Callable[[], str],
) -> dict[str, Any]:
    """What a check of the engine found, for its metadata. Raises BuildError where its answers are wrong."""
    with builder.phases.measure(REFERENCE):
        truth = reference()
    with builder.phases.measure(COMPARING):
        metadata = parse_metadata(build.description, str(plan))
        check = check_engine(plan, build.engine.plan, metadata, truth, device=builder.device.index, compare=compare)
    return check.to_dict()


def check_plan_destinations(
    plans: Sequence[tuple[ModelSource, Path]], timing_cache: str | Path | None = DEFAULT_CACHE
) -> None:
    """Refuses destinations where a plan, its metadata, the timing cache or another file would be lost.

    Args:
        plans: models, each with its plan, of which none replaces another, either.
        timing_cache: a file, or DEFAULT_CACHE, which replaces nothing.

    Raises:
        BuildError: as check_destinations.
    """
    for _, plan in plans:
        if is_onnx(plan):
            raise BuildError(
                f"-o {plan}: a plan is no {ONNX_SUFFIX} file, and would be taken for one; name it "
                f"{plan.with_suffix('.plan').name}, or make an {ONNX_SUFFIX} file with padfree optimize"
            )
    caches: list[tuple[str, Path | None]] = []
    if timing_cache is not None and timing_cache != DEFAULT_CACHE:
        cache = Path(timing_cache)
        caches += [("--timing-cache", cache), ("what is kept beside --timing-cache,", linear_tables.path_beside(cache))]
    check_destinations(
        [
            output
            for _, plan in plans
            for output in (
                ("-o", plan),
                ("the plan's metadata", sidecar_destination(plan)),
                ("the plan's tokenizer", tokenizer_destination(plan)),
            )
        ],
        [("the model", path) for model, _ in plans if (path := _read_path(model)) is not None],
        caches=caches,
    )


def _path_of(model: ModelSource) -> Path | None:
    """The file that a model's tokenizer lies beside; None for a message."""
    if isinstance(model, onnx.ModelProto):
        return None
    return model.path if isinstance(model, FolderModel) else Path(model)


def _read_path(model: ModelSource) -> Path | None:
    """What is read of a model; None for a message."""
    return model.folder if isinstance(model, FolderModel) else _path_of(model)


def _gpu(device: int) -> Device | None:
    """The GPU, or None: errors of the model are reported first; then check_machine says why there is no GPU."""
    try:
        return open_gpu(device)
    except SessionError:
        return None


def check_machine(device: int, *, operators: Collection[str]) -> None:
    """Checks that this machine can build with plugins of these `operators`, and names at once all that it lacks.

    Where there is no GPU, nothing else helps, and it is named alone.

    Raises:
        BuildError: TensorRT, a usable GPU, the plugin library, its code for this GPU or one of its plugins is missing,
            or the GPU lacks their type; the message says what to do.
    """
    gpus: list[Device] = []
    messages = [*_problems(import_tensorrt), *_problems(lambda: gpus.append(open_gpu(device)))]
    if operators:
        messages += _problems(plugin_library.find)
    if not messages and operators:
        messages = _problems(partial(device_code.require, gpus[0]))
    if not messages and operators:
        messages = _problems(partial(plugin_library.require, operators))
    for operator in set(operators) & set(EIGHT_BIT_OPERATORS.values()):
        messages += [problem for gpu in gpus if (problem := eight_bit_problem(operator, gpu))]
    if messages:
        if not gpus and no_gpu():
            advice = "rewritten models run on the CPU, too, and this makes one: padfree optimize MODEL -o packed.onnx"
            messages = [f"{no_gpu()}; {advice}"]
        raise BuildError("engines cannot be built here: " + "; also: ".join(messages))


def _problems(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except SessionError as error:
        return [str(error)]
    return []


def open_gpu(device: int) -> Device:
    """Makes the GPU current; raises SessionError where there is none that fits."""
    from padfree.runtime.gpu.cuda import (
        open_device,  # raises where cuda-bindings is missing, which is one of the problems
    )

    return open_device(device)
