# SPDX-License-Identifier: Apache-2.0
"""Machine code of kernels, whatever they are called: what differs between two builds of them.

    python -m tests.support.machine_code before/libpadfree.so after/libpadfree.so
    python -m tests.support.machine_code --part before/libpadfree.so after/CMakeFiles/x.dir/kernel.cu.o

Both arguments are libraries, object files, cubins or folders, of which all object files are read. Symbols of kernels,
types and files may change and kernels may move to other files; instructions, constants, registers, parameters, launch
bounds and shared memory may not. Ends with status 1 where a kernel differs, is gone or was added; with --part, where
the second argument is a part of what was built, kernels that are gone are left out. Needs cuobjdump and pyelftools:
pip install '.[dev]'.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TEXT = ".text."
OWN_DATA = re.compile(r"\.nv\.constant[1-9]\d*\.")
"""Constants of one kernel. Those of bank 0 are its parameters, which are known when it is launched."""
SHARED_DATA = re.compile(r"\.nv\.(constant[1-9]\d*|global\.init)$")
"""Constants of all kernels in a file."""
SIZED = (".nv.constant0.", ".nv.shared.", ".nv.local.")
INFO = ".nv.info"
PARAMETER_BANK = 0x0A
"""Attribute of a kernel whose value begins with a symbol's number, which does not depend on the kernel."""
LONG = 4
"""Form of an attribute that is followed by its size and data; the other forms hold 16 bits."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, or a function that kernels call, compiled for one architecture.

    Attributes:
        architecture: such as "sm_90a".
        symbol: its mangled name.
        digest: of the code and everything else that decides what runs, without names.
    """

    architecture: str
    symbol: str
    digest: str


@dataclass(frozen=True)
class Difference:
    """How two builds differ, by architecture and symbol.

    Attributes:
        same: how many kernels have the same machine code in both.
        changed: symbols that both have, with different code.
        gone: symbols of the first build only, whose code the second has under no name.
        added: symbols of the second build only, whose code the first has under no name.
    """

    same: int
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    added: tuple[str, ...]


def cuobjdump() -> Path:
    """The path of cuobjdump, in a folder with nvdisasm, which it calls.

    Raises:
        importlib.metadata.PackageNotFoundError: one of the two is not installed.
    """
    importlib.metadata.distribution("nvidia-cuda-nvdisasm")
    files = importlib.metadata.distribution("nvidia-cuda-cuobjdump").files or []
    return next(Path(str(file.locate())) for file in files if file.name == "cuobjdump")


def kernels(path: Path) -> list[Kernel]:
    """All kernels of a library, an object file, a cubin or a folder of object files.

    Raises:
        FileNotFoundError: there is no such file, or no device code in it.
    """
    objects = sorted(path.rglob("*.o")) if path.is_dir() else [path]
    results = [kernel for file in objects for kernel in _kernels_of_file(file)]
    if not results:
        raise FileNotFoundError(f"{path} has no device code; name a library, an object file or a folder of such")
    return results


def compare(before: Iterable[Kernel], after: Iterable[Kernel]) -> Difference:
    """Compares two builds; kernels match if their architecture and code are the same, whatever their symbols are."""
    first, second = _by_code(before), _by_code(after)
    gone = {name for code, names in first.items() for name in names[len(second.get(code, ())) :]}
    added = {name for code, names in second.items() for name in names[len(first.get(code, ())) :]}
    return Difference(
        same=sum(min(len(names), len(second.get(code, ()))) for code, names in first.items()),
        changed=tuple(sorted(gone & added)),
        gone=tuple(sorted(gone - added)),
        added=tuple(sorted(added - gone)),
    )


def _by_code(actual: Iterable[Kernel]) -> dict[tuple[str, str], list[str]]:
    """The names of the kernels with the same architecture and code."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kernel in sorted(actual, key=lambda kernel: kernel.symbol):
        names[kernel.architecture, kernel.digest].append(f"{kernel.architecture} {kernel.symbol}")
    return names


def _kernels_of_file(path: Path) -> Iterator[Kernel]:
    program = cuobjdump()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "-xelf", "all", str(path.resolve(strict=True))]
        subprocess.run(command, cwd=folder, check=False, capture_output=True, env={"PATH": str(program.parent)})
        for cubin in sorted(Path(folder).glob("*.cubin")):
            architecture = re.search(r"\.(sm_\w+)\.cubin$", cubin.name)
            yield from _kernels_of_cubin(cubin, architecture[1] if architecture else "")


def _kernels_of_cubin(cubin: Path, architecture: str) -> Iterator[Kernel]:
    from elftools.elf.elffile import ELFFile  # tests that read no cubin work without it

    with cubin.open("rb") as file:
        elf = ELFFile(file)
        sections = {section.name: section for section in elf.iter_sections() if section["sh_type"] != "SHT_RELA"}
        symbols = [symbol.name for symbol in elf.get_section_by_name(".symtab").iter_symbols()]
        data = {name: b"" if one["sh_type"] == "SHT_NOBITS" else one.data() for name, one in sections.items()}
        sizes = {name: one["sh_size"] for name, one in sections.items()}
    shared = [data[name] for name in sorted(data) if SHARED_DATA.match(name)]
    facts = _facts(data.get(INFO, b""), symbols)
    for name in data:
        if not name.startswith(TEXT):
            continue
        symbol = name.removeprefix(TEXT)
        own = [data[other] for other in sorted(data) if OWN_DATA.match(other) and other.endswith(f".{symbol}")]
        parts = [data[name], *own, *shared]
        parts += [str([sizes.get(f"{prefix}{symbol}", 0) for prefix in SIZED]).encode()]
        parts += [repr(sorted(facts[symbol])).encode(), repr(_attributes(data.get(f"{INFO}.{symbol}", b""))).encode()]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        yield Kernel(architecture, symbol, digest.hexdigest())


def _items(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Attributes of a section .nv.info by their numbers."""
    position = 0
    while position < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, position)
        position += 4
        size = value if form == LONG else 0
        yield attribute, info[position : position + size] if form == LONG else value.to_bytes(2, "little")
        position += size


def _facts(info: bytes, symbols: list[str]) -> dict[str, list[tuple[int, bytes]]]:
    """The general section's entries for each kernel: registers, stack."""
    facts: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for attribute, value in _items(info):
        if len(value) > 4:
            facts[symbols[int.from_bytes(value[:4], "little")]].append((attribute, value[4:]))
    return facts


def _attributes(info: bytes) -> list[tuple[int, bytes]]:
    """The entries of a kernel's own section: parameters, launch bounds, positions of barriers and exits."""
    return [(number, value[4:] if number == PARAMETER_BANK else value) for number, value in _items(info)]


def readable(names: Iterable[str]) -> list[str]:
    """Names with demangled symbols, if c++filt is installed."""
    lines, program = list(names), shutil.which("c++filt")
    if program is None or not lines:
        return lines
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(arguments: list[str] | None = None) -> int:
    """Compares two builds and prints how they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--part", action="store_true", help="the second is a part of what was built")
    options = parser.parse_args(arguments)
    try:
        first, second = kernels(options.before), kernels(options.after)
    except importlib.metadata.PackageNotFoundError as error:
        parser.exit(2, f"{error.name} is not installed: pip install '.[dev]'\n")
    except FileNotFoundError as error:
        parser.exit(2, f"{error}\n")
    difference = compare(first, second)
    kinds = {"changed": difference.changed, "gone": () if options.part else difference.gone, "added": difference.added}
    for kind, names in kinds.items():
        for name in readable(names):
            print(f"{kind:8s}{name}")
    by_architecture = Counter(kernel.architecture for kernel in second)
    count = ", ".join(f"{number} for {name}" for name, number in sorted(by_architecture.items()))
    words = ", ".join(f"{len(names)} {kind}" for kind, names in kinds.items())
    print(f"{len(first)} kernels before, {len(second)} after ({count}): {difference.same} the same, {words}")
    return int(any(kinds.values()))


if __name__ == "__main__":
    sys.exit(main())
