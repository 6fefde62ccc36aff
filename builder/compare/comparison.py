# SPDX-License-Identifier: Apache-2.0
"""A whole comparison: files, data, runners, errors, causes, and the first node that differs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .batches import ComparedBatch
from .candidates import REFERENCE, Settings, make_subjects, open_candidates, padded_runner
from .data import DataOptions, make_batches
from .original import Original, describe_original
from .outcomes import Outcome, compare_runners
from .reasons.bisecting import Departure, find_departure
from .reasons.causes import find_causes
from .reasons.rounding import find_rounding
from .reasons.roundoff import find_roundoff
from .reasons.structure import find_changes
from .report.report import Report, RunnerReport, describe_outcome, make_report
from .runners import ValidTokenRunner
from .saved import save_comparison
from .subject import Candidate, Subject


@dataclass(frozen=True)
class CompareOptions(Settings):
    """What `padfree compare` can be told, beside how runners are made.

    runners: of candidates.RUNNERS; empty takes what fits the files.
    interface: of what the original is rewritten to where no file is given, as `precision` is.
    bisect: look for the first node that differs, in models that are given as .onnx files.
    """

    runners: tuple[str, ...] = ()
    interface: str = "packed"
    data: DataOptions = field(default_factory=DataOptions)
    bisect: bool = False


def compare(
    original: Path, files: Sequence[Path], options: CompareOptions, say: Callable[[str], None] = lambda _: None
) -> Report:
    """Compares models with the one they were made from, which runs in onnxruntime.

    Args:
        original: the exported model.
        files: rewritten .onnx files and plans; none compares what the original is rewritten to.
        options: see CompareOptions.
        say: gets what is being done.

    Raises:
        BuildError, RewriteError, SessionError: a file, the data or the machine does not fit; what to do is said.
    """
    with tempfile.TemporaryDirectory(prefix="padfree-compare-") as folder:
        options = replace(options, folder=Path(folder))
        original_model, candidates, batches = _prepare(original, files, options)
        subjects = make_subjects(original_model, candidates, options.runners, batches, options)
        reference = padded_runner(original_model, REFERENCE, original_model.path)
        count = f"{len(batches)} batch{'es' * (len(batches) != 1)}"
        say(f"running the original and {', '.join(item.runner.name for item in subjects)} on {count}")
        outcomes = compare_runners(original_model, reference, subjects, batches)
        reports = []
        for subject, outcome in zip(subjects, outcomes, strict=True):
            if options.bisect or not outcome.passed:
                say(f"looking into {subject.runner.name}")
            causes = () if outcome.passed else explain(original_model, reference, subject, outcome)
            departure = bisect(original_model, subject, outcome) if options.bisect else None
            reports.append(
                RunnerReport(
                    name=subject.runner.name,
                    precision=subject.precision,
                    passed=outcome.passed,
                    verdict=describe_outcome(outcome.passed, outcome.errors, subject.tolerance, causes),
                    causes=causes,
                    tolerance=subject.tolerance,
                    outputs=outcome.errors,
                    batches=tuple(batch.name for batch in outcome.batches),
                    run_ms=sum(outcome.run_ms),
                    bisection=departure,
                )
            )
        return make_report(original, reports, batches, find_rounding(original_model, reference, batches))


def emit(original: Path, files: Sequence[Path], options: CompareOptions, folder: Path) -> tuple[str, ...]:
    """Writes data and scripts with which `polygraphy run` compares the first of the files; returns the commands.

    Raises:
        BuildError, RewriteError, SessionError: as compare.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = replace(options, folder=folder)
    original_model, candidates, batches = _prepare(original, files, options)
    metadata = candidates[0].metadata
    tolerance = options.tolerance(options.precision if metadata is None else metadata.arithmetic)
    return save_comparison(folder, original, original_model, candidates[0], batches, tolerance)


def _prepare(
    original: Path, files: Sequence[Path], options: CompareOptions
) -> tuple[Original, list[Candidate], tuple[ComparedBatch, ...]]:
    candidates = open_candidates(original, files, options, interface=options.interface)
    models = [item.metadata for item in candidates]
    original_model = describe_original(original, [item for item in models if item is not None], options.folder)
    others = [None] * (not {"trt-padded", "torch"}.isdisjoint(options.runners))
    return original_model, candidates, make_batches(original_model, [*models, *others], options.data)


def explain(original: Original, reference: ValidTokenRunner, subject: Subject, outcome: Outcome) -> tuple[str, ...]:
    """Why a model differs: what its outputs and further runs tell, what was changed in its file, or its precision."""
    causes = find_causes(original, reference, subject, outcome)
    item = subject.rewritten
    if item is None or item.metadata is None:
        return causes
    if item.metadata.quantization is not None:  # what the original is rewritten to has no scales to compare
        return causes or find_roundoff(original, subject, outcome)
    changes = find_changes(original.exported, item.path, item.metadata)
    if causes or changes is None or changes:
        return (*causes, *(changes or ()))
    return find_roundoff(original, subject, outcome)


def bisect(original: Original, subject: Subject, outcome: Outcome) -> Departure | None:
    """The first node that differs, on the batch with the largest error; None where nothing can be looked into."""
    item = subject.rewritten
    if item is None or item.metadata is None or subject.inside is None:
        return None
    rows = [row for output in outcome.errors for row in output.worst]

    def size(batch: ComparedBatch) -> float:
        return max((row.relative for row in rows if row.batch == batch.name), default=0.0)

    # Batches of one sequence come last: neither masks nor lengths can be wrong in them.
    batch = max(outcome.batches, key=lambda item: (len(item.mask) > 1, size(item)))
    return find_departure(
        original, subject.inside(), item.metadata, batch, subject.tolerance, outcome_passed=outcome.passed
    )
