# SPDX-License-Identifier: Apache-2.0
"""The `padfree` command: one module per subcommand, errors as one paragraph, no tracebacks."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType

import padfree
from padfree.contract.os_errors import describe_os_error

from . import bench, build, compare, costs, demo, doctor, embed, inspect, optimize, rerank, run, serve, simulate, triton
from .arguments import Parser
from .console import LineHandler, print_error

EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
EXIT_SIGNAL = 128  # plus the signal's number, as shells say it
AGAIN_S = 0.05
"""Seconds until a lost signal is sent again: the callback that lost it has ended by then."""
DEBUG_VARIABLE = "PADFREE_DEBUG"
SUBCOMMANDS = (
    optimize,
    build,
    run,
    embed,
    rerank,
    serve,
    triton,
    compare,
    inspect,
    bench,
    costs,
    simulate,
    doctor,
    demo,
)


class StoppedError(KeyboardInterrupt):
    """A signal that asks the process to end; as after Ctrl-C, unfinished files are removed first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: the arguments after the command's name; None takes the process's.

    Returns:
        0 when all went well, 1 after a failure (one paragraph on stderr), 2 for wrong usage, 130 after Ctrl-C, 128 and
        the signal's number after SIGTERM and SIGHUP.
    """
    debug = os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    signals = list[int]()
    _open_streams()
    try:
        with _stopping(signals):
            arguments = make_parser().parse_args(argv)
            _configure_logging(debug)
            code = int(arguments.function(arguments))
            sys.stdout.flush()
            return code
    except SystemExit as stop:  # argparse has printed help or usage
        return stop.code if isinstance(stop.code, int) else EXIT_FAILURE
    except StoppedError as stopped:
        print_error(f"stopped by {signal.Signals(stopped.number).name}; no file is half written")
        return EXIT_SIGNAL + stopped.number
    except KeyboardInterrupt:
        print_error("interrupted; no file is half written")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, such as `| head`: nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except Exception as error:
        if signal.SIGINT in signals:  # a library turned Ctrl-C into this error, for example during its import
            print_error("interrupted; no file is half written")
            return EXIT_INTERRUPTED
        if debug:
            raise
        print_error(describe(error))
        return EXIT_FAILURE


@contextmanager
def _stopping(signals: list[int]) -> Iterator[None]:
    """Turns signals that would end the process at once into StoppedError, so that unfinished files are removed.

    Signals that are ignored (nohup) or handled already stay so. `signals` collects those that came, SIGINT included.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        raise StoppedError(number)

    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    ours = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    if threading.current_thread() is not threading.main_thread():
        ours = {}
    try:
        for number in ours:
            signal.signal(number, stop)
        with _signals_sent_again():
            yield
    finally:
        for number, handler in ours.items():
            if signal.getsignal(number) is stop:  # the server ignores them at its end, and so does the process
                signal.signal(number, handler)


@contextmanager
def _signals_sent_again() -> Iterator[None]:
    """Sends a signal again if it came in one of Python's own callbacks, where exceptions are dropped."""
    usual, working = sys.unraisablehook, [True]

    def send(number: int) -> None:
        if working:
            os.kill(os.getpid(), number)

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            number = unraisable.exc_value.number if isinstance(unraisable.exc_value, StoppedError) else signal.SIGINT
            timer = threading.Timer(AGAIN_S, send, [number])
            timer.daemon = True
            timer.start()
            return
        usual(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        working.clear()
        sys.unraisablehook = usual


def _open_streams() -> None:
    """Has outputs take everything that is printed.

    Those that were closed when the process started (`>&-`, some service managers) are os.devnull; letters that the
    encoding of stdout does not have are escaped, as Python does on stderr.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def describe(error: Exception) -> str:
    """An error as one paragraph; errors that are not padfree's own say where to look further."""
    text = " ".join(str(error).split())
    if type(error).__module__.startswith("padfree."):
        return text
    if isinstance(error, MemoryError):
        return "out of memory; use smaller batches or a machine with more memory"
    if isinstance(error, OSError) and describe_os_error(error):
        return describe_os_error(error)
    name = type(error).__name__
    return f"{name}: {text or 'no message'}; run again with {DEBUG_VARIABLE}=1 to see where this came from"


def make_parser() -> argparse.ArgumentParser:
    """The command's parser with all subcommands."""
    parser = Parser(
        prog="padfree", description="Turns Hugging Face encoders into TensorRT engines that compute no padding."
    )
    parser.add_argument("--version", action="version", version=f"padfree {padfree.__version__}")
    subparsers = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND", required=True)
    for module in SUBCOMMANDS:
        name = module.__name__.rpartition(".")[2]
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.DESCRIPTION)
        module.add_arguments(subparser)
        subparser.set_defaults(function=module.run)
    return parser


def _configure_logging(debug: bool) -> None:
    handler = LineHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s" if debug else "%(message)s"))
    logger = logging.getLogger("padfree")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    logger.propagate = False
