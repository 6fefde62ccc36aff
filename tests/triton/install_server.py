# SPDX-License-Identifier: Apache-2.0
"""Installs a real tritonserver with its Python backend, from PyPI, for tests: python tests/triton/install_server.py.

Prints, as its last line, the export that lets the tests find it. A server that is already in ~/.cache/padfree (or
PADFREE_TRITON_CACHE) is used again. Ends with an error and one line that says why if there is no network or no wheel
that fits.

The wheel of nvidia-pytriton holds tritonserver 2.51 (the container 24.10). Its Python backend imports from the folder
`packages`: with NumPy 2 that backend's outputs come back empty, so it gets NumPy 1 of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTRITON = "nvidia-pytriton==0.7.0"
PACKAGES = ("numpy<2", "onnxruntime", "tokenizers")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class CannotInstall(Exception):
    """The reason why no server can be installed."""


def install(folder: Path) -> None:
    """Puts the server into `folder`/server and what its Python backend imports into `folder`/packages."""
    pip_install(folder / "server", "--no-deps", PYTRITON)
    triton = folder / "server" / "pytriton" / "tritonserver"
    stub = triton / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        raise CannotInstall(f"{PYTRITON} has no Python backend for Python {PYTHON}")
    shutil.copy(stub, triton / "backends" / "python")
    (triton / "bin" / "tritonserver").chmod(0o755)
    check_libraries(triton / "backends" / "python" / stub.name)
    pip_install(folder / "packages", *PACKAGES)


def pip_install(folder: Path, *arguments: str) -> None:
    """Installs wheels into a folder."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--target", str(folder)]
    done = subprocess.run([*command, *arguments], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CannotInstall(done.stderr.strip().splitlines()[-1])


def check_libraries(program: Path) -> None:
    """Raises an error if a shared library (above all Python's own) is missing on this machine."""
    found = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    missing = [line.split()[0] for line in found.splitlines() if "not found" in line]
    if missing:
        raise CannotInstall(f"the Python backend needs {', '.join(missing)}, which this machine lacks")


def main() -> int:
    """Installs the server unless it is there."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "padfree"
    cache = Path(os.environ.get("PADFREE_TRITON_CACHE", default))
    folder = cache / f"{PYTRITON.replace('==', '-')}-python{PYTHON}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=cache))
        try:
            install(unfinished)
            unfinished.rename(folder)
        except CannotInstall as reason:
            print(f"no tritonserver: {reason}", file=sys.stderr)
            return 1
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    print(f"export PADFREE_TRITON={folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
