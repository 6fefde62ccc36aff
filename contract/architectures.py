# SPDX-License-Identifier: Apache-2.0
"""Which GPUs run which compiled device code. The build asks what to compile, the runtime what was compiled.

The build runs this file by itself, before padfree is installed: it imports nothing of padfree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

OF_MAJOR = {8: "80", 9: "90a", 10: "100", 12: "120"}
"""The code that is compiled for a GPU, by the first number of its compute capability: it serves all GPUs with it."""
ALL = tuple(OF_MAJOR.values())
SUPPORTED_CAPABILITIES = "8.0 to 9.0, 10.x and 12.x"

_ARCHITECTURE = re.compile(r"(\d+)(\d)(a|f)?")
_CAPABILITY = re.compile(r"(\d+)\.(\d)")


def architecture_for(compute_capability: str) -> str | None:
    """What to compile for a GPU of this compute capability, such as "8.9"; None where padfree has no code for it."""
    major, _ = _numbers(compute_capability)
    return OF_MAJOR.get(major)


def serves(architecture: str, compute_capability: str) -> bool:
    """Whether a GPU runs code of an architecture, such as "80", "90a" or "100f".

    Code runs on later GPUs of the same first number; with an "a" on none but its own.
    """
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        return False
    major, minor = _numbers(compute_capability)
    same = int(match[1]) == major
    return same and (int(match[2]) == minor if match[3] == "a" else int(match[2]) <= minor)


def code_problem(gpu: str, compute_capability: str, architectures: Collection[str]) -> str:
    """Why a GPU cannot run code for these architectures, and what to compile; "" where it can.

    Args:
        gpu: its name, for the message.
        compute_capability: such as "8.9".
        architectures: what was compiled; nothing in a library without device code.
    """
    gpu_text = f"{gpu} (compute capability {compute_capability})"
    architecture_name = architecture_for(compute_capability)
    if architecture_name is None:
        return (
            f"{gpu_text} is no GPU that padfree has kernels for; allowed: compute capability {SUPPORTED_CAPABILITIES}"
        )
    if any(serves(architecture, compute_capability) for architecture in architectures):
        return ""
    has = f"code for {', '.join(architectures)} alone" if architectures else "no device code"
    return f"{gpu_text} needs code for {architecture_name}, this library has {has}"


def install_command(compute_capability: str, architectures: Sequence[str]) -> str:
    """The command that builds the library for one more GPU, from a checkout of padfree; it keeps the others."""
    architecture = architecture_for(compute_capability)
    all_architectures = list(dict.fromkeys([*architectures, *([architecture] if architecture else [])]))
    quote = "'" if len(all_architectures) > 1 else ""
    return f"PADFREE_CUDA_ARCHITECTURES={quote}{';'.join(all_architectures)}{quote} pip install ."


def _numbers(compute_capability: str) -> tuple[int, int]:
    match = _CAPABILITY.fullmatch(compute_capability)
    if match is None:
        raise ValueError(f"compute capability {compute_capability!r}; allowed: two numbers such as 8.9")
    return int(match[1]), int(match[2])
