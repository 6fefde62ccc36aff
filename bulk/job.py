# SPDX-License-Identifier: Apache-2.0
"""From what a user asks for to a finished folder: the manifest, the lock, the workers, the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from padfree.contract.late_interaction import DOCUMENT
from padfree.contract.metadata import Metadata
from padfree.contract.names import is_onnx
from padfree.runtime import Budget
from padfree.runtime.text import (
    ANSWERS,
    CLASSIFY,
    EMBED,
    RERANK,
    SPARSE,
    TOKENS,
    Choices,
    ServedModel,
    describe,
    prompt_advice,
)
from pyarrow.fs import FileType

from .driver import OnProgress, Outcome, deal, find_parts, remove_leftovers
from .errors import BulkError
from .locations import SCHEME, Location
from .lock import LOCK, only_driver
from .manifest import MANIFEST, OPTION_NAMES, Manifest, Model, Options, differences, read_manifest, write_manifest
from .models import identify, look
from .processes import end_if_worker
from .reading.inputs import check_unchanged, find
from .reading.pair_columns import pair_columns
from .reading.planning import make_manifest
from .report import REPORT, Report, report_of, write_report
from .verify import Verified, verify
from .workers.base import Workers
from .workers.worker import WorkerSpec

SHARD_ROWS, CPU_SHARD_ROWS, TOKEN_SHARD_ROWS = 1 << 16, 1 << 10, 1 << 9
"""Rows of a shard, where rows have one vector, on a GPU and on a CPU, and where tokens have one."""
MOST_TEXT_BYTES = 1 << 18


@dataclass(frozen=True)
class Request:
    """What is asked for; None: what the model says, or the default.

    Attributes:
        inputs: files, folders, URIs.
        output: the folder of the result.
        model: the plan or packed file.
        columns: those of the text, or of the two texts of a pair; None, for one or both of a pair: as the inputs
            spell them.
        id_column: the column of ids; None: rows are numbered.
        head: the model's output.
        tokenizer: the tokenizer.json.
        prompt: the name of one of the model's prompts.
        max_length: most tokens of a text or pair.
        dtype: the result's type.
        max_text_bytes: larger texts are bad rows.
        shard_rows: rows of a shard.
        max_tokens: tokens of a batch.
        max_sequences: texts of a batch.
    """

    inputs: Sequence[str]
    output: str
    model: Path
    columns: tuple[str | None, ...] | None = ("text",)
    id_column: str | None = None
    head: str | None = None
    tokenizer: Path | None = None
    prompt: str | None = None
    max_length: int | None = None
    dtype: str = "float32"
    max_text_bytes: int = MOST_TEXT_BYTES
    shard_rows: int | None = None
    max_tokens: int | None = None
    max_sequences: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_text_bytes", "shard_rows", "max_tokens", "max_sequences"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = OPTION_NAMES[name]
                raise BulkError(f"{option} {value}: allowed: 1 or more; leave it out for the default")


@dataclass(frozen=True)
class Running:
    """How workers run what the manifest says; nothing of it changes the result.

    Attributes:
        tokenizers: processes of each worker that make tokens.
        cpu_threads: threads of a run, for .onnx files.
        runs: batches of a worker under way at once.
        allow_other_gpu: as for Session.
    """

    tokenizers: int = 1
    cpu_threads: int = 0
    runs: int = 3
    allow_other_gpu: bool = False

    def __post_init__(self) -> None:
        for name, least in (("tokenizers", 1), ("runs", 1), ("cpu_threads", 0)):
            value = getattr(self, name)
            if value < least:
                raise BulkError(f"{name} is {value}, allowed: {least} or more; leave it out for the default")


MakeWorkers = Callable[[WorkerSpec], Workers]


@dataclass(frozen=True)
class Finished:
    """What became of a job: the report, and what reading back has found, if that was asked for."""

    report: Report
    verified: Verified | None


def embed(
    request: Request,
    running: Running,
    make_workers: MakeWorkers,
    *,
    read_back: bool = False,
    on_progress: OnProgress = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Finished:
    """Does what is missing of a result, and nothing twice.

    Args:
        request: inputs, output, model.
        running: how workers run it.
        make_workers: starts them, where something is missing.
        read_back: compare the result with the inputs at the end.
        on_progress: is told where the work stands.
        say: is told, in a line, what is being done.

    Raises:
        BulkError: another driver is at work, inputs or options are not those of the manifest, or the work cannot go
            on. padfree.runtime.SessionError: the model or its tokenizer cannot be used.
    """
    end_if_worker()
    if request.columns is None or len(request.columns) > 1:
        request = replace(request, columns=pair_columns(request.inputs, *(request.columns or ())))
    served_model, options, model = _read_request(request)
    output = Location.of(request.output)
    _check_apart(request, output)
    is_new = output.info().type == FileType.NotFound
    output.make_folder()
    with _remove_if_empty(output, is_new), only_driver(output) as check:
        manifest = _manifest(request, output, options, model, say)
        remove_leftovers(output)
        parts = find_parts(output, manifest)
        missing = len(manifest.shards) - len(parts)
        rows, shards = manifest.rows, len(manifest.shards)
        say(f"{rows} row{'s' * (rows != 1)} in {shards} shard{'s' * (shards != 1)}, {missing} to do")
        names: tuple[str, ...] = ()
        outcome = Outcome(parts, len(parts))
        if missing:
            workers = make_workers(_spec(request, running, manifest, served_model))
            names = workers.names
            outcome = deal(manifest, parts, workers, on_progress, check)
            for file in manifest.inputs:
                if file.etag:  # an earlier version's manifest has no digests that were compared as it was read
                    check_unchanged(file)
        report = report_of(manifest, outcome, frozenset(parts), names)
        # The report is missing where the last driver was killed before it wrote one.
        if missing or output.child(REPORT).info().type == FileType.NotFound:
            write_report(output, report)
        verification = None
        if read_back:
            say("reading the result back")
            verification = verify(output, manifest)
    return Finished(report, verification)


@contextmanager
def _remove_if_empty(output: Location, is_new: bool) -> Iterator[None]:
    """Removes a folder that was made for a job which could not begin."""
    try:
        yield
    except BaseException:
        if is_new and output.is_local:
            with suppress(OSError):  # something is in it
                Path(output.path).rmdir()
        raise


def _spec(request: Request, running: Running, manifest: Manifest, served_model: ServedModel) -> WorkerSpec:
    return WorkerSpec(
        manifest=manifest,
        output=_absolute(request.output),
        model=request.model.resolve(),
        tokenizer=served_model.tokenizer.path.resolve(),
        tokenizers=running.tokenizers,
        cpu_threads=running.cpu_threads,
        runs=running.runs,
        allow_other_gpu=running.allow_other_gpu,
    )


def _read_request(request: Request) -> tuple[ServedModel, Options, Model]:
    """What the request and the model say together."""
    metadata, budget = look(request.model)
    pairs = len(_columns(request)) > 1
    choices = Choices(
        task=_task_of_head(request.head, metadata, pairs),
        output=request.head,
        tokenizer=request.tokenizer,
        max_length=request.max_length,
        token_rows=not pairs,
        output_option="--head",
        task_option=None,
    )
    served_model = describe(request.model, metadata, choices)
    if pairs and served_model.late is not None and served_model.inputs.others:
        raise BulkError(
            f"{request.model}: compares vectors of tokens, and reads {', '.join(served_model.inputs.unfilled)} beside "
            "texts, which a query and its document would both need; export the model without that"
        )
    fitting = (
        (RERANK, CLASSIFY) if pairs else (EMBED, SPARSE, TOKENS, *([] if served_model.takes_pairs else [CLASSIFY]))
    )
    if served_model.task not in fitting:
        command, other = ("rerank", "embed") if pairs else ("embed", "rerank")
        raise BulkError(
            f"{request.model}: its output '{served_model.output}' is for the task '{served_model.task}', which is not "
            f"for padfree {command}; call padfree {other}, or choose another output with --head"
        )
    if request.prompt is not None and request.prompt not in served_model.prompts:
        raise BulkError(f"--prompt {request.prompt}: {prompt_advice(served_model.prompts)}")
    _check_batches(request, budget)
    return (
        served_model,
        _options(request, served_model, budget),
        identify(request.model, served_model.tokenizer.content),
    )


def _columns(request: Request) -> tuple[str, ...]:
    return cast(tuple[str, ...], request.columns)  # embed has asked the inputs


def _task_of_head(head: str | None, metadata: Metadata, pairs: bool) -> str | None:
    """What an output is for that the user names; None: the model tells."""
    if head in (None, *ANSWERS):
        return None
    if not pairs:
        return EMBED
    shape = next((item.shape for item in metadata.outputs if item.name == head), None)
    return RERANK if not shape or shape[-1] in (1, None) else CLASSIFY


def _check_batches(request: Request, budget: Budget) -> None:
    limits = {"tokens": (request.max_tokens, budget.max_tokens), "texts": (request.max_sequences, budget.max_sequences)}
    for what, (value, most) in limits.items():
        if value is not None and most is not None and value > most:
            raise BulkError(f"batches of {value} {what}, the model takes {most}; pass {most} or less")


def _options(request: Request, served_model: ServedModel, budget: Budget) -> Options:
    of_vectors = CPU_SHARD_ROWS if is_onnx(request.model) else SHARD_ROWS
    rows = TOKEN_SHARD_ROWS if served_model.has_token_rows else of_vectors
    return Options(
        task=served_model.task,
        head=served_model.output,
        columns=_columns(request),
        id_column=request.id_column,
        prompt=_prompt(request, served_model),
        max_length=served_model.max_length,
        dtype=request.dtype,
        max_text_bytes=request.max_text_bytes,
        shard_rows=request.shard_rows or rows,
        max_tokens=request.max_tokens or budget.max_tokens,
        max_sequences=request.max_sequences or budget.max_sequences,
        truncation_side=served_model.tokenizer.truncation_side,
        token_types=bool(served_model.tokenizer.token_types),
        values=tuple(item.original_name for item in served_model.inputs.others),
    )


def _prompt(request: Request, served_model: ServedModel) -> str:
    """What is put in front of texts; where tokens have vectors, what texts are: "query" or "document"."""
    if served_model.late is not None:
        return request.prompt or served_model.default_prompt or DOCUMENT
    return served_model.prompt(request.prompt)


def _check_apart(request: Request, output: Location) -> None:
    for source in request.inputs:
        location = Location.of(source)
        if location.contains(output) or output.contains(location):
            raise BulkError(
                f"--output {request.output} and the input {source} lie in each other: results would be read as inputs; "
                "choose another output folder"
            )


def _manifest(
    request: Request, output: Location, options: Options, model: Model, say: Callable[[str], None]
) -> Manifest:
    """The manifest of the folder, which is made where there is none.

    Raises:
        BulkError: what is asked for is not what the result was begun with, or other things lie in the folder.
    """
    inputs = [_absolute(source) for source in request.inputs]
    names = [info.base_name for info in output.entries()]
    if MANIFEST not in names:
        unknown_name = next((name for name in names if name != LOCK and not name.startswith(".")), None)
        if unknown_name is not None:
            raise BulkError(
                f"{output.shown_path}: holds {unknown_name} and no manifest, so it is not padfree's; pass a new or "
                "empty folder"
            )
        say("looking at the inputs")
        manifest = make_manifest(inputs, options, model)
        write_manifest(output, manifest)
        return manifest
    manifest = read_manifest(output)
    if request.shard_rows is None:  # the default was another one once
        options = replace(options, shard_rows=manifest.options.shard_rows)
    paths = [(file.root, file.location.path) for file in find(inputs)]
    changed = list(differences(manifest, options, model, paths))
    if changed:
        raise BulkError(
            f"{output.shown_path}: the result was begun with other settings: {'; '.join(changed)}; pass the same "
            "again, or pass another output folder"
        )
    for file in manifest.inputs:
        check_unchanged(file)
    return manifest


def _absolute(source: str) -> str:
    """The path as it means the same in every process."""
    return source if SCHEME in source else str(Path(source).resolve())
