# SPDX-License-Identifier: Apache-2.0
"""Whether a machine has an NVIDIA GPU at all, without the 2 GB of packages that could ask it; which models need one."""

from __future__ import annotations

from pathlib import Path

from padfree.contract.names import is_onnx

from .errors import BuildError

DEVICE_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Files of NVIDIA's driver, and of Windows' driver for Linux in WSL; containers see them if they were given a GPU."""


def no_gpu() -> str:
    """Why there is no GPU to be used; "" where one may be."""
    if any(file.exists() for file in DEVICE_FILES):
        return ""
    return f"this machine shows no NVIDIA GPU (there is neither {' nor '.join(map(str, DEVICE_FILES))})"


def check_gpus(gpus: str, model: Path) -> None:
    """Refuses --gpus for what is no plan, which is known before a folder is rewritten or a repository is downloaded.

    Raises:
        BuildError: the model runs on the CPU.
    """
    from .folders.hub import is_hub_id

    if is_onnx(model) or model.is_dir() or (not model.exists() and is_hub_id(model)):
        raise BuildError(
            f"--gpus {gpus}: is for plans, and {model} runs on the CPU; leave it out, or build a plan with padfree "
            "build"
        )
