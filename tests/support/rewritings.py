# SPDX-License-Identifier: Apache-2.0
"""Results that several tests need, made once for all tests and all their processes."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from padfree.onnx_tools import RewriteError, RewriteResult, load_model, rewrite

from . import exports_table, families, folding_encoders
from .families import Case
from .messages import with_linear


class Rewritings:
    """Rewritten models in a folder; each call returns a copy that the test may change, or raises the RewriteError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_file(self, path: Path, interface: str = "packed") -> RewriteResult:
        """Rewrites a file below tests/fixtures, without verification. Raises RewriteError if it is refused."""
        name = "-".join(path.relative_to(families.FIXTURES).with_suffix("").parts)
        return self.of(f"{name}-{interface}", lambda: rewrite(load_model(path), interface=interface, verify=False))

    def of_case(self, case: Case, interface: str = "packed") -> RewriteResult:
        """Rewrites a file of a family, without verification. Raises RewriteError if it is refused."""
        return self.of_file(case.path, interface)

    def of_export(self, name: str, interface: str) -> RewriteResult:
        """Rewrites an exported file and compares it with the original on each sequence alone. Raises RewriteError."""
        return self.of(f"export-{name}-{interface}", lambda: exports_table.right(name, interface))

    def of_folded(self, name: str, precision: str = "fp32", interface: str = "packed") -> RewriteResult:
        """Rewrites a wide encoder with plain GEMMs and norms, without verification. Raises RewriteError."""
        return self.of(
            f"folded-{name}-{precision}-{interface}",
            lambda: folding_encoders.rewrite_fixture(name, precision, interface),
        )

    def of_linear(self, name: str, precision: str = "fp32", interface: str = "packed") -> RewriteResult:
        """Does the same with GEMMs and norms of padfree."""

        def make() -> RewriteResult:
            plain = self.of_folded(name, precision, interface)
            return replace(plain, model=with_linear(plain.model))

        return self.of(f"linear-{name}-{precision}-{interface}", make)

    def of(self, key: str, make: Callable[[], RewriteResult]) -> RewriteResult:
        """What `make` returns, or the RewriteError that it raises; `make` runs when the result is first needed."""
        file = self._folder / key
        with self._alone(key):
            if not file.exists():
                actual: RewriteResult | RewriteError
                try:
                    actual = make()
                except RewriteError as error:
                    actual = error
                part = self._folder / f"{key}.part"
                part.write_bytes(pickle.dumps(actual))
                part.replace(file)
        result: RewriteResult | RewriteError = pickle.loads(file.read_bytes())
        if isinstance(result, RewriteError):
            raise result
        return result

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Holds a lock, so that other processes that need the same result wait for it."""
        with (self._folder / f"{key}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
