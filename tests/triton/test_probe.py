# SPDX-License-Identifier: Apache-2.0
"""The probe, with a server whose model processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime.triton import probe

from tests.support.triton_server import TritonServer

from .processes import processes_of, wait_until
from .served_kinds import TOKENIZER

pytestmark = pytest.mark.needs_triton

MODELS = ("bert", "bert_tokenizer")


def run_probe(server: TritonServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the file by itself, as in a container whose Python has no packages."""
    address = f"http://{server.url('http')}"
    command = [sys.executable, "-I", "-S", probe.__file__, *arguments, "--url", address, "--pause", "0.1"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("killed", MODELS)
def test_a_process_that_is_gone_is_found_and_the_server_ended(
    installed: Path, model_file: Path, tmp_path: Path, killed: str
) -> None:
    options = ServingOptions("bert", tokenizer=TOKENIZER, max_length=16, instances=2)
    repository = write_repository(model_file, tmp_path / "repository", options).folder
    with TritonServer(installed, [repository], tmp_path, "--exit-timeout-secs=5") as server:
        assert run_probe(server, *MODELS).returncode == 0
        end = ["--end", str(server.process.pid)]
        unknown = run_probe(server, "other", *end)
        assert unknown.returncode == 1  # not loaded, so it may still come
        assert unknown.stderr.count("unhealthy: http://127.0.0.1") == 3
        own = [pid for pid, command in processes_of(killed).items() if command[1].startswith(str(repository))]
        os.kill(int(own[0]), signal.SIGKILL)  # those of other servers are left alone
        server.get("v2/health/ready")  # the server says that it is ready, although every second request fails
        found = run_probe(server, *MODELS)
        assert found.returncode == 1
        assert f"unhealthy: model '{killed}' answers with 500: " in found.stderr
        assert server.process.poll() is None
        assert run_probe(server, *MODELS, *end).returncode == 1
        wait_until(lambda: server.process.poll() is not None, "the end of the server")
