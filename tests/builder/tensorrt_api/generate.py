# SPDX-License-Identifier: Apache-2.0
"""Writes the names in TensorRT's Python bindings, one file per version: generate.py SETUP [VERSION ...].

SETUP is a program that installs the version given to it and prints, as its last line, the shell exports that make
`import tensorrt` work. It needs no GPU.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

VERSIONS = ("10.6.0", "10.15.1", "11.2.1")
FOLDER = Path(__file__).parent
LIST_NAMES = """
import inspect
import tensorrt
for name in sorted(dir(tensorrt)):
    if name.startswith("_"):
        continue
    print(name)
    value = getattr(tensorrt, name)
    if inspect.isclass(value):
        for member in sorted(dir(value)):
            if not member.startswith("_"):
                print(f"{name}.{member}")
"""


def main() -> None:
    """Writes VERSION.txt for every version."""
    setup, *versions = sys.argv[1:]
    for version in versions or VERSIONS:
        script = 'eval "$("$0" "$1" | tail -1)" && exec "$2" -c "$3"'
        command = ["bash", "-c", script, setup, version, sys.executable, LIST_NAMES]
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        (FOLDER / f"{version}.txt").write_text(names, encoding="utf-8")


if __name__ == "__main__":
    main()
