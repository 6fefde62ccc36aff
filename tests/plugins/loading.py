# SPDX-License-Identifier: Apache-2.0
"""Run as a script in a fresh process: loads the libraries in the given ways, then prints the registry as JSON.

    python loading.py LIBPADFREE STEP...

both files in another folder), `polygraphy` (its LoadPlugins), `unload` (deregister_library of the last load). Steps
that come first, before TensorRT is imported: `early-dlopen`, `early-polygraphy`, and `alone`: dlopen where TensorRT
cannot be imported.
be imported.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

PREFIX = "Padfree"
FIRST_STEPS = ("early-dlopen", "early-polygraphy", "alone")
REGISTER_NAME = "libpadfree_register.so"


class Steps:
    """Carries out steps and keeps the log."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._handle: Any = None

    @property
    def _registry(self) -> Any:
        import tensorrt as trt

        return trt.get_plugin_registry()

    def run(self, step: str) -> None:
        if step == "load":
            self._handle = self._registry.load_library(str(self._library))
        elif step in ("dlopen", "early-dlopen", "alone"):
            if step == "alone":
                sys.modules["tensorrt"] = None  # type: ignore[assignment]
            ctypes.CDLL(str(self._library.with_name(REGISTER_NAME)))
            if step == "alone":
                del sys.modules["tensorrt"]
        elif step in ("polygraphy", "early-polygraphy"):
            from polygraphy.backend.trt import LoadPlugins

            LoadPlugins(plugins=[str(self._library.with_name(REGISTER_NAME))])()
        elif step == "copy":
            folder = Path(tempfile.mkdtemp())
            for name in (self._library.name, REGISTER_NAME):
                shutil.copy(self._library.with_name(name), folder / name)
            ctypes.CDLL(str(folder / REGISTER_NAME))
            shutil.rmtree(folder)
        elif step == "unload":
            self._registry.deregister_library(self._handle)
        else:
            raise ValueError(step)

    def creators(self) -> list[list[str]]:
        ours = [creator for creator in self._registry.all_creators if creator.name.startswith(PREFIX)]
        return sorted([creator.name, creator.plugin_version, creator.plugin_namespace] for creator in ours)


def main() -> None:
    """Prints the creators after all steps."""
    library, steps = Path(sys.argv[1]), sys.argv[2:]
    loader = Steps(library)
    if steps[0] not in FIRST_STEPS:
        import tensorrt  # noqa: F401
    for step in steps:
        loader.run(step)
    sys.stdout.write(json.dumps(loader.creators()) + "\n")


if __name__ == "__main__":
    main()
