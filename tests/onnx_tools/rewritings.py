# SPDX-License-Identifier: Apache-2.0
"""The results of work that several tests need, done once for all of them and for all their processes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

from padfree.onnx_tools import RewriteError, RewriteResult, load_model, rewrite

from tests.support import exports_table
from tests.support.families import Case


class Rewritings:
    """Rewritten models in a folder; each is a copy that the test may change, or the RewriteError that refuses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_case(self, case: Case, interface: str = "packed") -> RewriteResult:
        """A file of a family, not verified. Raises RewriteError where it is refused."""
        return self.of(
            f"{case.exporter}-{case.name}-{interface}",
            lambda: rewrite(load_model(case.path), interface=interface, verify=False),
        )

    def of_export(self, name: str, interface: str) -> RewriteResult:
        """An exported file, compared with the original on each sequence alone. Raises RewriteError."""
        return self.of(f"export-{name}-{interface}", lambda: exports_table.right(name, interface))

    def of(self, key: str, make: Callable[[], RewriteResult]) -> RewriteResult:
        """What `make` gives, or the RewriteError that it raises; made when it is first asked for."""
        file = self._folder / key
        if not file.exists():
            found: RewriteResult | RewriteError
            try:
                found = make()
            except RewriteError as error:
                found = error
            part = self._folder / f"{key}.{os.getpid()}"
            part.write_bytes(pickle.dumps(found))
            part.replace(file)
        made: RewriteResult | RewriteError = pickle.loads(file.read_bytes())
        if isinstance(made, RewriteError):
            raise made
        return made
