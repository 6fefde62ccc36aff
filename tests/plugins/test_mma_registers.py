# SPDX-License-Identifier: Apache-2.0
"""The general kernels compiled for several GPUs.

GEMMs have registers for as many blocks as menu.h says, and spill none; attention spills a few bytes at most.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
CASES = [("half_fp16", 80), ("half_fp16", 86), ("e4m3_fp16", 89), ("e4m3_fp16", 120), ("int8_fp16", 80)]
INT8_TILES = {2, 5, 6}
REGISTERS = 65536
"""Of a multiprocessor, since 7.0."""
ATTENTION_SPILLS = 64
"""The most bytes that a kernel of attention spills: with windows, to leave room for several blocks."""
GRANULARITY = 8
"""Registers of a thread are a multiple of it."""
KERNEL = re.compile(
    r"Compiling entry function '(?P<symbol>\S*MmaTileILi(?P<tile>\d+)E\S*)'.*?(?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Tile:
    """What plugins/linear/mma/menu.h says of one."""

    threads: int
    blocks: int


def tiles() -> list[Tile]:
    """All of the menu."""
    text = (PLUGINS / "linear" / "mma" / "menu.h").read_text("utf-8")
    struct = re.search(r"struct MmaShape \{(.*?)\n\};", text, re.DOTALL)
    rows = re.search(r"kMmaShapes\[\] = \{(.*?)\n\};", text, re.DOTALL)
    assert struct
    assert rows
    names = [
        name.strip()
        for names in re.findall(r"^  (?:int|float) ([^;]*);", struct[1], re.MULTILINE)
        for name in names.split(",")
    ]
    result = []
    for row in re.findall(r"\{([^}]*)\}", rows[1]):
        of = dict(zip(names, (float(number.strip("f ")) for number in row.split(",")), strict=True))
        warps = of["tokens"] / of["warp_tokens"] * of["features"] / 64 * of["slices"]
        result.append(Tile(int(warps) * 32, int(of["blocks"])))
    return result


def compile_log(nvcc: str, folder: Path, source: str, architecture: int) -> str:
    """What ptxas says of each kernel of a source."""
    command = [nvcc, "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xptxas=-v", "-I", str(PLUGINS)]
    command += ["-gencode", f"arch=compute_{architecture},code=sm_{architecture}", "-cubin", "-o", str(folder / "x")]
    command.append(str(PLUGINS / source))
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


@pytest.mark.slow
@pytest.mark.parametrize(("source", "architecture"), CASES)
def test_kernels_leave_registers_for_their_blocks(nvcc: str, tmp_path: Path, source: str, architecture: int) -> None:
    log = compile_log(nvcc, tmp_path, f"linear/mma/{source}.cu", architecture)
    menu, found = tiles(), set()
    for kernel in KERNEL.finditer(log):
        tile = menu[int(kernel["tile"])]
        registers = -(-int(kernel["registers"]) // GRANULARITY) * GRANULARITY
        assert (kernel["stores"], kernel["loads"]) == ("0", "0"), kernel["symbol"]
        assert REGISTERS // (registers * tile.threads) >= tile.blocks, f"{kernel['symbol']}: {registers} registers"
        found.add(int(kernel["tile"]))
    assert found == (INT8_TILES if source == "int8_fp16" else set(range(len(menu))))


@pytest.mark.slow
def test_attention_spills_little(nvcc: str, tmp_path: Path) -> None:
    log = compile_log(nvcc, tmp_path, "attention/mma_fp16.cu", 86)
    spills = [int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    assert spills
    assert max(spills) <= ATTENTION_SPILLS
