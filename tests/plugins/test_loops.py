# SPDX-License-Identifier: Apache-2.0
"""Main loops of the Hopper products, in the machine code of the built library.

Matrix instructions take their descriptors from uniform registers. Where control flow might, as far as the compiler
knows, split a warp, it computes them in per-thread registers and moves each half of a descriptor over, 16 moves for
four instructions: 45 ns per stage, which made the output and down products of small batches up to 15 % slower and
changed no result.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from padfree.runtime.gpu import device_code

from tests.support.machine_code import cuobjdump

MOST_MOVES = 1.0  # per matrix instruction
AHEAD = 40  # instructions before the first matrix instruction, which make descriptors
KERNEL = re.compile(r"Function : \S*?(?:linear|resident)Sm90Kernel(\S+)")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ +)?([A-Z][\w.]*)([^;]*);")


def tools() -> str:
    """The folder of cuobjdump and of nvdisasm, which cuobjdump calls."""
    try:
        return str(cuobjdump().parent)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}: pip install '.[dev]'")


@pytest.fixture(scope="module")
def moves(library_path: Path) -> dict[str, float]:
    """For each kernel, the number of moves to uniform registers in its loop per matrix instruction."""
    compiled = device_code.architectures(library_path)
    if compiled is not None and "90a" not in compiled:
        pytest.skip(f"{library_path} has no code for 90a; PADFREE_CUDA_ARCHITECTURES=90a pip install .")
    folder = tools()
    code: dict[str, list[str]] = defaultdict(list)
    command = [f"{folder}/cuobjdump", "-sass", str(library_path)]
    kernel = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PATH": folder}) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Function : " in line:
                match = KERNEL.search(line)
                kernel = match and match[1]
            elif kernel and (match := INSTRUCTION.match(line)):
                code[kernel].append(match[1] + match[2] * ("GMMA" in match[1]))
    assert process.returncode == 0
    return {name: _moves(instructions) for name, instructions in code.items()}


def _moves(instructions: list[str]) -> float:
    """The same for one kernel's instructions."""
    matrix = [number for number, name in enumerate(instructions) if "GMMA" in name and "gdesc" in name]
    loop = instructions[max(matrix[0] - AHEAD, 0) : matrix[-1]]
    return sum(name.startswith("R2UR") for name in loop) / len(matrix)


@pytest.mark.slow
def test_descriptors_are_made_in_uniform_registers(moves: dict[str, float]) -> None:
    """All kernels do: all tiles, types and epilogues, with a ring for both operands or with resident input."""
    assert len(moves) > 500
    assert {name: count for name, count in moves.items() if count > MOST_MOVES} == {}
