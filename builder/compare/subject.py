# SPDX-License-Identifier: Apache-2.0
"""What is compared with the original: a file, and a runner of it with its tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from padfree.contract.names import is_onnx
from padfree.runtime import Metadata

from .insides import Inside
from .runners import ValidTokenRunner
from .tolerances import Tolerance

REWRITTEN = "rewritten.onnx"
"""What the original is rewritten to where no other model is named."""


@dataclass(frozen=True)
class Candidate:
    """A file to compare; label names it in reports, metadata is None for files that padfree did not make."""

    path: Path
    label: str
    metadata: Metadata | None

    @property
    def is_plan(self) -> bool:
        """Whether it is an engine."""
        return not is_onnx(self.path)


@dataclass(frozen=True)
class Subject:
    """A runner to be compared.

    any_mask: whether it takes left padding and holes, as padded models do.
    rewritten: the rewritten .onnx file that it runs; None where there is none.
    inside: opens what runs, to look at its tensors; None where that cannot be done.
    """

    runner: ValidTokenRunner
    precision: str
    any_mask: bool
    tolerance: Tolerance
    rewritten: Candidate | None = None
    inside: Callable[[], Inside] | None = None
