# SPDX-License-Identifier: Apache-2.0
"""How pytest-xdist shares the tests among processes: by itself where there are many files, and how they are divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

FEW_FILES = 12
"""With fewer files one process is as fast: another takes seconds to start, and collects all tests again."""
MOST_WORKERS = 16
"""Each takes about 600 MB."""
ON_THE_GPU = ("tests/gpu/", "tests/kernels/", "tests/triton/")
"""Their tests run in one process, one after another, as they do without workers."""
GPU_SCOPE = "tests on the GPU"


def choose_workers(config: pytest.Config) -> None:
    """Asks pytest-xdist for a process per core where many files are run and nothing speaks against it.

    What was given on the command line stays: -n, --dist and --tx. One process it is for what looks into a test or
    takes part of them: -s, --pdb, --trace, -k, -m, --lf, --sw, node ids and few files.
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
    """What of the files that were named can run beside each other."""
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
    """Divides the tests by file, and takes what is on the GPU together; None where the user chose another division.

    Files are taken in their order, not those with most tests first: the last folders have many short files, after which
    all processes end at about the same time, and the files with most tests are those that share rewritten models, for
    which they would wait for each other.
    """
    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return ByFile(config, log)
