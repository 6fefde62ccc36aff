# SPDX-License-Identifier: Apache-2.0
"""Two commits rewrite the same files in turn, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import onnx

from tests.support.exports import load

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest and mypy depend on it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Times:
    """CPU seconds of one file with one interface at both commits: the least of all rounds."""

    name: str
    interface: str
    before: float
    after: float


def fixtures(tree: Path, folder: Path) -> Iterator[Path]:
    """The committed ONNX files of a tree, as plain files in a folder that include weights which are drawn."""
    for path in sorted((tree / "tests" / "fixtures").rglob("*.onnx*")):
        name = "-".join(path.relative_to(tree / "tests" / "fixtures").parts).removesuffix(".gz")
        target = folder / name
        if path.suffix == ".gz":
            onnx.save(load(path.name.removesuffix(".onnx.gz"), path.parent), target)
        else:
            target.write_bytes(path.read_bytes())
        yield target


class Worker:
    """A process with the package of one source tree."""

    def __init__(self, tree: Path, folder: Path) -> None:
        _link_package(tree, folder)
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def seconds(self, path: Path, interface: str) -> float | None:
        """CPU seconds of a rewriting; None if the file is refused. Raises RuntimeError if the process ends."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the process has no pipes")
        print(path, interface, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"the process that rewrites {path.name} ended")
        return None if answer == "refused" else float(answer)


def compare(
    workers: Sequence[Worker], paths: Sequence[Path], interfaces: Sequence[str], rounds: int
) -> Iterator[Times]:
    """The times of all files that both commits rewrite; they take turns, also at being first."""
    before, after = workers
    for path in paths:
        for interface in interfaces:
            found: Mapping[Worker, list[float | None]] = {before: [], after: []}
            for turn in range(rounds):
                for worker in (before, after) if turn % 2 == 0 else (after, before):
                    found[worker].append(worker.seconds(path, interface))
            first, second = ([item for item in found[worker] if item is not None] for worker in (before, after))
            if first and second:
                yield Times(path.stem, interface, min(first), min(second))


def _link_package(tree: Path, folder: Path) -> None:
    """Makes the package `padfree` of a source tree importable from a folder, without building anything."""
    packages = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["tool"]["scikit-build"]["wheel"]["packages"]
    package = folder / "padfree"
    package.mkdir(parents=True)
    for name, source in packages.items():
        if name == "padfree":
            for item in (tree / source).iterdir():
                (package / item.name).symlink_to(item)
        else:
            (folder / name).symlink_to(tree / source)
