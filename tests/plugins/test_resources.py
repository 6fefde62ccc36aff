# SPDX-License-Identifier: Apache-2.0
"""Registers, stack, shared memory and size of the kernels, in the library for all GPUs and compiled for 8.6 alone.

GEMMs leave registers for as many blocks as menu.h says; few kernels have a stack, and none has static shared memory
beyond what a launch may ask for. What a launch adds is checked when it is compiled (`static_assert` in plugins/).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from padfree.runtime.gpu import device_code

from tests.support.machine_code import cuobjdump

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100", "sm_120")
"""The architectures in the library for all GPUs. 8.6 and 8.9 run the code for 8.0 if they need no e4m3."""
NO_E4M3 = ("sm_90a", "sm_100")
"""mma.sync has none there: e4m3 is unpacked first."""
REGISTERS = 65536
"""Registers of a multiprocessor, since compute capability 7.0."""
GRANULARITY = 8
"""Registers of a thread are a multiple of it."""
E4M3 = re.compile(r"MmaBytesI(6__half|13__nv_bfloat16)fE")
SHARES_TILES = re.compile(r"MmaEpilogueKindE\d+ELb1E")
FEWER_SHARING_BLOCKS = ("sm_100", "sm_120")
"""Blocks that share a tile take 2 to 6 registers too many there, so that a multiprocessor has one of them less."""
LIBRARY_BYTES = 80 * 10**6
"""The most that the library for all GPUs may have: 19 MB in November 2026."""
STATIC_SHARED_BYTES = 48 * 1024
STACK_BYTES = 40
STACKS = (("attentionDisentangledKernel", ("sm_100", "sm_120"), 168), ("MmaBytes", NO_E4M3, 160))
"""Kernels that have more of it, where, and how much."""
ATTENTION_SPILLS = 64
"""The most bytes that a kernel of attention spills: with windows, to leave room for several blocks."""
USAGE = re.compile(r"arch = (\S+)|Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
COMPILED = re.compile(
    r"Compiling entry function '(\S*MmaTileILi\d+E\S*)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Kernel:
    """What a kernel occupies, as cuobjdump says it."""

    architecture: str
    symbol: str
    registers: int
    stack: int
    shared: int
    local: int

    @property
    def most_stack(self) -> int:
        """The bytes that it may have."""
        return next(
            (most for part, where, most in STACKS if part in self.symbol and self.architecture in where), STACK_BYTES
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


def too_many_registers(symbol: str, registers: int) -> bool:
    """Whether the GEMM kernel leaves fewer blocks than its tile is to have."""
    tile = tiles()[int(re.findall(r"MmaTileILi(\d+)E", symbol)[0])]
    return REGISTERS // (-(-registers // GRANULARITY) * GRANULARITY * tile.threads) < tile.blocks


def kernels(library: Path) -> Iterator[Kernel]:
    """The kernels of a library."""
    program = cuobjdump()
    command, path = [str(program), "-res-usage", str(library)], {"PATH": str(program.parent)}
    text = subprocess.run(command, env=path, check=True, capture_output=True, text=True).stdout
    architecture = ""
    for name, symbol, *numbers in USAGE.findall(text):
        if name:
            architecture = name
        else:
            yield Kernel(architecture, symbol, *map(int, numbers))


@pytest.fixture(scope="module")
def compiled(library_path: Path, tools: Path) -> list[Kernel]:
    """All kernels of the library for all GPUs; skips the test where another one was built."""
    if len(device_code.architectures(library_path) or ()) < len(ARCHITECTURES) - 1:
        pytest.skip(f"{library_path} is not for all GPUs: PADFREE_CUDA_ARCHITECTURES=all pip install . (needs {tools})")
    result = list(kernels(library_path))
    if not {kernel.architecture for kernel in result} & {"sm_80", "sm_90a"}:
        pytest.skip(f"{library_path} was built with PADFREE_PTX")
    return result


def compile_log(nvcc: str, folder: Path, source: str) -> str:
    """What ptxas says of each kernel of a source for 8.6."""
    command = [nvcc, "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xptxas=-v", "-I", str(PLUGINS)]
    command += ["-DPADFREE_ELEMENT=half"]
    command += ["-gencode", "arch=compute_86,code=sm_86", "-cubin", "-o", str(folder / "x"), str(PLUGINS / source)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def test_every_architecture_has_all_gemms(compiled: list[Kernel]) -> None:
    found = {(kernel.architecture, operands) for kernel in compiled for operands in ("MmaHalf", "MmaBytes")
             if operands in kernel.symbol}  # fmt: skip
    assert found == {(name, operands) for name in ARCHITECTURES for operands in ("MmaHalf", "MmaBytes")} - {
        ("sm_89", "MmaHalf")
    }


def test_gemms_leave_registers_for_their_blocks(compiled: list[Kernel]) -> None:
    gemms = [
        kernel
        for kernel in compiled
        if "linearMmaKernel" in kernel.symbol
        and not (kernel.architecture in NO_E4M3 and E4M3.search(kernel.symbol))
        and not (kernel.architecture in FEWER_SHARING_BLOCKS and SHARES_TILES.search(kernel.symbol))
    ]
    assert len(gemms) > 400
    assert [kernel for kernel in gemms if too_many_registers(kernel.symbol, kernel.registers)] == []


def test_few_kernels_have_a_stack(compiled: list[Kernel]) -> None:
    assert [kernel for kernel in compiled if kernel.stack > kernel.most_stack] == []
    assert {kernel.local for kernel in compiled} == {0}


def test_static_shared_memory_is_what_every_block_may_have(compiled: list[Kernel]) -> None:
    assert [kernel for kernel in compiled if kernel.shared > STATIC_SHARED_BYTES] == []


@pytest.mark.usefixtures("compiled")
def test_the_library_for_all_gpus_is_small(library_path: Path) -> None:
    assert library_path.stat().st_size < LIBRARY_BYTES


@pytest.mark.slow
def test_gemms_compiled_for_a_gpu_of_less_shared_memory_spill_nothing(nvcc: str, tmp_path: Path) -> None:
    found = COMPILED.findall(compile_log(nvcc, tmp_path, "linear/mma/half.cu"))
    assert {tile for symbol, *_ in found for tile in re.findall(r"MmaTileILi(\d+)E", symbol)} == {
        str(number) for number in range(len(tiles()))
    }
    for symbol, stores, loads, registers in found:
        assert (stores, loads) == ("0", "0"), symbol
        assert not too_many_registers(symbol, int(registers)), f"{symbol}: {registers} registers"


@pytest.mark.slow
def test_attention_spills_little(nvcc: str, tmp_path: Path) -> None:
    log = compile_log(nvcc, tmp_path, "attention/mma.cu")
    spills = [int(number) for number in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)]
    assert spills
    assert max(spills) <= ATTENTION_SPILLS
