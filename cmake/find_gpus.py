# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine for CMake, through the driver alone: neither nvcc nor nvidia-smi is needed.

Prints a line for every GPU: what to compile for it ("-" where padfree has no code for it), its compute capability, its
name. Prints nothing where there is no driver, or no GPU that CUDA may use.
"""

from __future__ import annotations

import ctypes
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

CONTRACT = Path(__file__).resolve().parent.parent / "contract"  # padfree is not installed yet
DRIVER = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
NAME_BYTES = 256


def gpus() -> Iterator[tuple[str, str]]:
    """Compute capability and name of each."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return
    for number in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        name = ctypes.create_string_buffer(NAME_BYTES)
        if (
            driver.cuDeviceGet(ctypes.byref(device), number)
            or driver.cuDeviceGetName(name, NAME_BYTES, device)
            or driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
            or driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
        ):
            continue
        yield f"{major.value}.{minor.value}", name.value.decode(errors="replace")


def main() -> None:
    """Prints them."""
    architecture_for = runpy.run_path(str(CONTRACT / "architectures.py"))["architecture_for"]
    for capability, name in gpus():
        sys.stdout.write(f"{architecture_for(capability) or '-'} {capability} {name}\n")


if __name__ == "__main__":
    main()
