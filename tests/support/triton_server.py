# SPDX-License-Identifier: Apache-2.0
"""A real tritonserver as a context manager, for tests (see install_server.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import padfree.contract
import padfree.runtime

READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 40.0
CRASHES = 4
"""Crashes that a test of cancellation survives: one in some ten thousand cancelled requests ends this server."""


class TritonServer:
    """Serves model repositories on loopback ports.

    Args:
        installed: the folder that install_server.py made.
        repositories: the model repositories.
        work: a folder for the log and for the Python backend's environment.
        options: further options of tritonserver.
        environment: further environment variables of the server.
    """

    def __init__(
        self,
        installed: Path,
        repositories: Sequence[Path],
        work: Path,
        *options: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.log = work / "server.log"
        self.ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
        triton = installed / "server" / "pytriton" / "tritonserver"
        python = python_environment(work / "python", [installed / "packages"])
        command = [
            str(triton / "bin" / "tritonserver"),
            f"--backend-directory={triton / 'backends'}",
            *(f"--model-repository={repository}" for repository in repositories),
        ]
        for service, port in self.ports.items():
            command += [f"--{service}-address=127.0.0.1", f"--{service}-port={port}"]
        path = f"{python / 'bin'}:{os.environ['PATH']}"  # the Python backend uses the first python3 on the path
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                env={**os.environ, "PATH": path, **(environment or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def url(self, service: str) -> str:
        """Host and port of "http", "grpc" or "metrics"."""
        return f"127.0.0.1:{self.ports[service]}"

    def get(self, path: str, service: str = "http") -> str:
        """Body of a GET request; raises urllib.error.URLError for anything but success."""
        with urllib.request.urlopen(f"http://{self.url(service)}/{path}", timeout=10) as reply:
            return str(reply.read().decode())

    def wait_until_ready(self) -> None:
        """Raises AssertionError with the log when the server ends, or is not ready in time."""
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._is_ready():
                return
            time.sleep(0.05)
        raise AssertionError(f"tritonserver is not ready; its log:\n{self.log.read_text(errors='replace')}")

    def post(self, path: str) -> str:
        """Body of an empty POST request; raises urllib.error.HTTPError for anything but success."""
        request = urllib.request.Request(f"http://{self.url('http')}/{path}", method="POST")
        with urllib.request.urlopen(request, timeout=60) as reply:
            return str(reply.read().decode())

    def _is_ready(self) -> bool:
        try:
            self.get("v2/health/ready")
            self.get("metrics", "metrics")  # the port that starts to listen last
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def terminate(self) -> None:
        """Sends SIGTERM and does not wait."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the server and the processes of its Python backend at once."""
        with contextlib.suppress(ProcessLookupError):  # all have ended already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def has_crashed(self) -> bool:
        """Whether a segmentation fault has ended the server, or ends it within a second."""
        try:
            return self.process.wait(1.0) == -signal.SIGSEGV
        except subprocess.TimeoutExpired:
            return False

    def wait(self) -> int:
        """Waits for the server to end; returns its exit status."""
        return self.process.wait(STOPPED_WITHIN_S)

    def __enter__(self) -> TritonServer:
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.terminate()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise


def try_on_servers(start: Callable[[], TritonServer], trial: Callable[[TritonServer], None]) -> None:
    """Runs a trial that cancels gRPC requests on a server of its own, and on a new server after each crash.

    This version's gRPC front-end (2.51; fixed in 25.04 and 25.06) may use a request's state after its release if the
    request is cancelled while it is being answered, and dies with SIGSEGV (triton-inference-server/server#8034, #8078,
    #8220), whatever the backend. No other failure is retried.
    """
    for crashes in range(CRASHES + 1):
        server = start()
        try:
            server.wait_until_ready()
            trial(server)
            return
        except Exception:
            if crashes == CRASHES or not server.has_crashed():
                raise
        finally:
            server.kill()


def python_environment(folder: Path, packages: list[Path]) -> Path:
    """Makes an environment for the Python backend alone, with padfree as it is imported here and some folders.

    The backend runs Python isolated, so PYTHONPATH does not reach it.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    sources = folder / "padfree-sources"
    (sources / "padfree").mkdir(parents=True)
    for package in (padfree.contract, padfree.runtime):
        location = Path(str(package.__file__)).resolve().parent
        (sources / "padfree" / package.__name__.rpartition(".")[2]).symlink_to(location)
    site = next(folder.glob("lib/python*/site-packages"))
    site.joinpath("padfree.pth").write_text("".join(f"{path}\n" for path in [sources, *packages]))
    return folder


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()
