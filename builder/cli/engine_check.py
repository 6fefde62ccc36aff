# SPDX-License-Identifier: Apache-2.0
"""Shows what the check of a new engine found, and repeats it for a plan: `padfree doctor --plan`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .console import number_text, print_line, print_table

ERRORS = ("relative", "absolute", "cosine", "equal")
COLUMNS = ("output", *ERRORS, "worst in batch", "allowed relative")


def print_engine_check(metadata: Mapping[str, Any]) -> None:
    """A table of a plan's metadata: the errors of every output; a line where nothing was checked."""
    check = metadata.get("check")
    if check is None:
        print_line("the engine's answers were not checked")
        return
    try:
        rows = [
            (
                name,
                *(number_text(item[column], ".6g") for column in ERRORS),
                item["batch"],
                f"{item['allowed']['relative']:.6g}",
            )
            for name, item in check["outputs"].items()
        ]
        title, others = f"the engine's answers beside {check['reference']}", list(check["not_compared"])
    except (KeyError, TypeError, AttributeError, ValueError):  # anybody may have written it
        print_line("what is kept of the check of the engine's answers is damaged")
        return
    print_table(title, COLUMNS, rows)
    for name in others:
        print_line(f"output '{name}' was not compared: which of its numbers are a sequence's is not known")


def engine_check_line(metadata: Mapping[str, Any]) -> str:
    """The engine's check in one line: the largest error and the smallest cosine of any output."""
    check = metadata.get("check")
    if check is None:
        return "the engine's answers were not checked"
    outcome = {
        column: [item[column] for item in check["outputs"].values() if item[column] is not None]
        for column in ("relative", "cosine", "equal")
    }
    parts = [f"relative error {max(outcome['relative']):.2g}"] if outcome["relative"] else []
    parts += [f"cosine {min(outcome['cosine']):.5f}"] if outcome["cosine"] else []
    parts += [f"{min(outcome['equal']):.1%} of integers equal"] if outcome["equal"] else []
    return (
        f"{len(check['batches'])} batches on this GPU beside {check['reference']}: {', '.join(parts) or 'no numbers'}"
    )


def check_plan(plan: Path, device: int) -> int:
    """Runs the batches that a plan keeps, and shows whether its answers are still right; 1 where they are not.

    Raises:
        SessionError: the plan does not run here; BuildError: it keeps no batches.
    """
    from padfree.builder.engine_check.again import repeat_check
    from padfree.runtime import Session

    with Session(plan, device=device, allow_other_gpu=True, cuda_graphs=False) as session:
        answers = list(repeat_check(session.backend, session.metadata, str(plan)))
    rows = [
        (
            item.batch,
            item.output,
            f"{item.relative:.1e}",
            "yes" if item.same_bits else "no",
            "right" if item.is_right else "wrong",
        )
        for item in answers
    ]
    columns = ("batch", "output", "error", "same bits", "result")
    print_table(f"{plan}, beside the answers that are kept with it", columns, rows)
    wrong = sum(not item.is_right for item in answers)
    print_line(f"{len(answers)} answers: {len(answers) - wrong} right, {wrong} wrong")
    return 1 if wrong or not answers else 0
