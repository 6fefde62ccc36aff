# SPDX-License-Identifier: Apache-2.0
"""How `pytest` runs here: on every core, without what this machine lacks, and with one line per reason for skips."""

from __future__ import annotations

import fcntl
import gc
import importlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import pass_results, sessions, skips, workers

SLOW = "slow: `pytest --slow` runs it too, as CI does"
ONE_AT_A_TIME = ("gpu", "needs_tensorrt")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of these tests."""
    group = parser.getgroup("padfree")
    group.addoption("--slow", action="store_true", help="also run the tests that are marked slow")
    group.addoption("--note-passed", type=Path, metavar="FILE", help="write the ids of the tests that passed")
    group.addoption("--except-passed", type=Path, metavar="FILE", help="leave out the tests whose ids a file lists")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Uses every core if that is faster."""
    workers.choose_workers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distributes whole files of tests."""
    return workers.make_scheduler(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Records the tests that pass, if asked to; workers report to the first process."""
    if config.option.note_passed is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(pass_results.PassRun(config.option.note_passed))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Turns garbage collection off while tests are collected: ten thousand of them leave no garbage, and they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Keeps sessions of onnxruntime from spinning, once tests have imported it."""
    sessions.leave_cores_to_others()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run; it looks for something only if a test's mark requires it."""
    for marker, works, reason in (
        ("needs_tensorrt", _tensorrt_works, "needs `import tensorrt` to work: pip install '.[trt]'"),
        ("needs_torch", _torch_is_there, "needs torch and transformers: pip install '.[export]'"),
        ("gpu", _gpu_works, "needs a GPU that CUDA can use, and there pip install '.[trt]'"),
        (
            "needs_triton",
            _triton_is_there,
            "needs tritonclient and PADFREE_TRITON: `python tests/triton/install_server.py` prints it",
        ),
    ):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not works():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
    _leave_slow_ones(config, items)
    if config.option.except_passed is not None:
        pass_results.leave_out(items, config.option.except_passed, config)


def _leave_slow_ones(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips slow tests unless they are selected with --slow, with -m or by name."""
    if config.option.slow or "slow" in config.option.markexpr:
        return
    named = [argument.partition("::")[2] for argument in config.args]
    for item in items:
        own = item.nodeid.partition("::")[2]
        if item.get_closest_marker("slow") and not any(name and own.startswith(name) for name in named):
            item.add_marker(pytest.mark.skip(reason=SLOW))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Runs tests that use the GPU or TensorRT one at a time, even if there are several workers."""
    if not hasattr(item.config, "workerinput") or not any(map(item.get_closest_marker, ONE_AT_A_TIME)):
        return (yield)
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    with (factory.getbasetemp().parent / "gpu.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what was skipped: one line per reason instead of one per test."""
    lines = skips.summary(report.longrepr[2] for report in terminalreporter.stats.get("skipped", []))
    if lines:
        terminalreporter.section("skipped", sep="=")
        for line in lines:
            terminalreporter.write_line(line)


def _tensorrt_works() -> bool:
    if importlib.util.find_spec("tensorrt") is None:
        return False
    try:
        importlib.import_module("tensorrt")
    except (ImportError, OSError):
        return False
    return True


def _gpu_works() -> bool:
    if skips.without("cuda.bindings") is not None:
        return False
    from padfree.runtime.gpu.cuda import device_count

    return device_count() > 0


def _triton_is_there() -> bool:
    return "PADFREE_TRITON" in os.environ and importlib.util.find_spec("tritonclient") is not None


def _torch_is_there() -> bool:
    return skips.without("torch", "transformers") is None
