# SPDX-License-Identifier: Apache-2.0
"""TensorRT's module, its logger, and the checks that come before anything of it is created."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from padfree.contract.installation import install_command
from padfree.contract.metadata import EngineInfo

from ..errors import SessionError
from .device import Device

VERSION_PARTS = 3  # 10.15.1.29 and 10.15.1.30 run each other's plans
MAX_ERRORS_KEPT = 50

_log = logging.getLogger("padfree.tensorrt")
_loggers: list[tuple[Any, Any]] = []  # one for each imported TensorRT module; only tests have several


def import_tensorrt() -> Any:
    """TensorRT's Python module.

    Raises:
        SessionError: it is not installed, or its libraries cannot be loaded.
    """
    try:
        return importlib.import_module("tensorrt")
    except ModuleNotFoundError as error:
        raise SessionError(
            f"TensorRT is not installed ({error}); install it with: {install_command('trt')} (or pip install "
            "tensorrt), or run the rewritten .onnx file, which needs no TensorRT"
        ) from error
    except (ImportError, OSError) as error:
        raise SessionError(
            f"TensorRT is installed but cannot be loaded ({error}); check that its libraries are on LD_LIBRARY_PATH "
            "and fit the Python bindings"
        ) from error


def short_version(version: str) -> str:
    """The first three parts: 10.15.1.29 -> 10.15.1."""
    return ".".join(version.split(".")[:VERSION_PARTS])


def check_engine(engine: EngineInfo, source: str, *, version: str, device: Device, allow_other_gpu: bool) -> None:
    """Compares a plan's origin with this machine, before TensorRT sees the plan.

    Raises:
        SessionError: another TensorRT version, another compute capability, or (unless allowed) another GPU model.
    """
    rebuild = "build the plan again on this machine with padfree build"
    if short_version(version) != short_version(engine.tensorrt):
        raise SessionError(
            f"{source}: built by TensorRT {engine.tensorrt}, this machine has {short_version(version)}, and plans run "
            f"only in the version that built them; install tensorrt=={engine.tensorrt}, or {rebuild}"
        )
    if device.compute_capability != engine.compute_capability:
        raise SessionError(
            f"{source}: built for compute capability {engine.compute_capability} ({engine.gpu_name}), GPU "
            f"{device.index} ({device.name}) has {device.compute_capability}; {rebuild}"
        )
    if device.name != engine.gpu_name and not allow_other_gpu:
        raise SessionError(
            f"{source}: built on {engine.gpu_name}, GPU {device.index} is {device.name}; {rebuild}, or pass "
            "allow_other_gpu=True (--allow-other-gpu) to run it with kernels chosen for the other GPU"
        )


def shared_logger(trt: Any) -> Any:
    """The process's logger for TensorRT, which feeds Python's logging ("padfree.tensorrt", level debug).

    There is one, until the process ends: TensorRT takes the first logger that it gets for all that it makes, as long as
    anything of that exists, and would go on calling one that is gone. Nothing goes to the terminal by itself: whoever
    sees a call fail puts the newest of `errors` into its own message. What begins anew, a build or an engine, calls
    `forget()` first, so as not to show the error of another.
    """
    for module, logger in _loggers:
        if module is trt:
            return logger
    _loggers.append((trt, _make_logger(trt)))
    return _loggers[-1][1]


def _make_logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        """Keeps the newest errors for messages."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.errors.append(msg)
                del self.errors[:-MAX_ERRORS_KEPT]
            if severity != trt.ILogger.VERBOSE:
                _log.debug("%s", msg)

        def forget(self) -> None:
            self.errors.clear()

    return Logger()
