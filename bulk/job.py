# SPDX-License-Identifier: Apache-2.0
"""From what a user asks for to a finished folder: the manifest, the lock, the workers, the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from padfree.runtime.text import ServedModel
from pyarrow.fs import FileType

from .driver import OnProgress, Outcome, deal, find_parts, remove_leftovers
from .errors import BulkError
from .locations import SCHEME, Location
from .lock import LOCK, only_driver
from .manifest import MANIFEST, Manifest, Model, Options, differences, read_manifest, write_manifest
from .processes import end_if_worker
from .reading.inputs import check_unchanged, find
from .reading.pair_columns import pair_columns
from .reading.planning import make_manifest
from .report import REPORT, Report, report_of, write_report
from .request import Request, resolve_request
from .verify import Verified, verify
from .workers.base import Workers
from .workers.worker import WorkerSpec


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
    served_model, options, model = resolve_request(request)
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
