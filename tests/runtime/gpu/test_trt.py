# SPDX-License-Identifier: Apache-2.0
"""Padfree's subclasses of TensorRT's classes, with the real module."""

from __future__ import annotations

import io
import logging

import pytest
from padfree.builder.engine.progress import PhaseBars, StageProgress, make_monitor
from padfree.runtime.gpu import trt as helpers
from rich.console import Console

pytestmark = pytest.mark.needs_tensorrt


def test_the_logger_keeps_errors_and_passes_everything_to_logging(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trt = helpers.import_tensorrt()
    monkeypatch.setattr(logging.getLogger("padfree"), "propagate", True)
    caplog.set_level(logging.DEBUG, logger="padfree.tensorrt")
    logger = helpers.shared_logger(trt)
    assert isinstance(logger, trt.ILogger)
    for at in range(helpers.MAX_ERRORS_KEPT + 1):
        logger.log(trt.ILogger.ERROR, f"error {at}")
    logger.log(trt.ILogger.WARNING, "a warning")
    logger.log(trt.ILogger.VERBOSE, "chatter")
    assert len(logger.errors) == helpers.MAX_ERRORS_KEPT
    assert logger.errors[-1] == f"error {helpers.MAX_ERRORS_KEPT}"
    assert "a warning" in caplog.text
    assert "chatter" not in caplog.text
    assert helpers.shared_logger(trt) is logger
    logger.forget()
    assert not logger.errors


def test_the_monitor_is_one_of_tensorrts() -> None:
    trt = helpers.import_tensorrt()
    monitor = make_monitor(trt, PhaseBars(StageProgress(Console(file=io.StringIO()))))
    assert isinstance(monitor, trt.IProgressMonitor)
    monitor.phase_start("Building", None, 2)
    assert monitor.step_complete("Building", 0)
    monitor.phase_finish("Building")
