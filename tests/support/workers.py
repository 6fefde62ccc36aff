# SPDX-License-Identifier: Apache-2.0
"""How pytest-xdist distributes the tests: it is used if there are many files, and divides them by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FEW_FILES = 12
"""With fewer files one process is as fast: each further one takes seconds to start and to collect all tests again."""
MOST_WORKERS = 16
"""Each worker takes about 600 MB."""
ON_THE_GPU = ("tests/gpu/", "tests/kernels/", "tests/triton/")
"""Tests in these folders run in one process, one after another, as they do without workers."""
GPU_SCOPE = "tests on the GPU"


def choose_workers(config: pytest.Config) -> None:
    """Asks pytest-xdist for one process per core if many files are run and no option speaks against it.

    -n, --dist and --tx on the command line stay as they are. Options that look into a test or select some tests use a
    single process: -s, --pdb, --trace, -k, -m, --lf, --sw, node ids and few files.
    """
    option = config.option
    if not hasattr(option, "numprocesses") or hasattr(config, "workerinput"):
        return  # no pytest-xdist, or one of its workers
    if option.numprocesses is not None or option.dist != "no" or option.tx:
        return
    looks = option.usepdb or option.trace or option.capture == "no" or option.collectonly or option.setupplan
    part = option.keyword or option.markexpr or getattr(option, "lf", False) or getattr(option, "stepwise", False)
    if looks or part or len(_scopes(config)) < FEW_FILES:
        return
    option.numprocesses = "auto"
    option.maxprocesses = option.maxprocesses or MOST_WORKERS


def _scopes(config: pytest.Config) -> set[str]:
    """The parts of the named files that can run at the same time."""
    files: set[Path] = set()
    for inputs in config.args:
        path = config.invocation_params.dir / inputs.partition("::")[0]
        files |= set(path.rglob("test_*.py")) if path.is_dir() else {path}
    return {_scope(_below(path, config.rootpath)) for path in files}


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _scope(nodeid: str) -> str:
    return GPU_SCOPE if nodeid.startswith(ON_THE_GPU) else nodeid.partition("::")[0]


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Divides the tests by file, with all tests on the GPU in one part; None if the user chose another division.

    Files are taken in their order, not those with most tests first: the last folders have many short files, so that all
    processes end at about the same time, and the files with most tests share rewritten models, for which they would
    wait for each other.
    """
    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return ByFile(config, log)
