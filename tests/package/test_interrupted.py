# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the command imports what it needs: one line, exit code 130, no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_commands import PYPROJECT

INTERRUPTING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000): pass
            except KeyboardInterrupt as error:
                raise ERROR
        return None

sys.meta_path.insert(0, Interrupts())
from padfree.__main__ import main
sys.argv = ["padfree", "optimize", "missing.onnx", "-o", "out.onnx"]
sys.exit(main())
"""


@pytest.mark.parametrize(
    "module", ["padfree.builder.cli", "rich.console", "padfree.builder.coverage", "numpy", "onnxruntime"]
)
@pytest.mark.parametrize("raised", ["", "ImportError('failed') from error"])
def test_an_interrupted_import_is_no_failure(module: str, raised: str, tmp_path: Path) -> None:
    """Libraries turn Ctrl-C into errors of their own, as numpy does while it is imported."""
    code = INTERRUPTING.replace("MODULE", repr(module)).replace("raise ERROR", f"raise {raised}")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert result.returncode == 130, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("padfree: error: interrupted")


LOSING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def __del__(self):
        os.kill(os.getpid(), NUMBER)
        for _ in range(1000): pass

class Loses:
    def find_spec(self, name, path=None, target=None):
        if name == "padfree.builder.folders.folder" and self in sys.meta_path:
            sys.meta_path.remove(self)
            Interrupting()
            import time
            time.sleep(30)
        return None

sys.meta_path.insert(0, Loses())
from padfree.__main__ import main
sys.argv = ["padfree", "inspect", "missing.onnx"]
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_destructor_is_not_lost(number: signal.Signals, tmp_path: Path) -> None:
    """Python drops exceptions that are raised there, as it does in its own import lock."""
    code = LOSING.replace("NUMBER", str(int(number)))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert result.returncode == 128 + number, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("padfree: error: ")


def test_the_command_begins_where_it_listens() -> None:
    assert 'padfree = "padfree.__main__:main"' in PYPROJECT
