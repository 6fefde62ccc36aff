# SPDX-License-Identifier: Apache-2.0
"""The tensors of safetensors files as definitions take them: by name, each with the shape that config.json asks for."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from padfree.onnx_tools.files import Floats

from ..errors import BuildError
from ..folders.weights import Entry, read_header
from .errors import NotDefinedError
from .stored_numbers import MOST_SCRATCH_BYTES, TYPES, fill, is_scratch, scratch, transpose, widen


@dataclass(frozen=True)
class Weight:
    """A tensor, or some rows of one, not read yet.

    Attributes:
        name: what it is called in the graph.
        shape: of what is read.
        file: where it lies.
        dtype: its type in the file, by safetensors' name.
        begin: its first byte in the file.
        is_transposed: whether it is transposed after it is read.
        plus: what is added to every number.
        delta: what is added to the tensor itself, before it is transposed.
        part: which rows are read, where rows of several tensors are interleaved; None for all.
    """

    name: str
    shape: tuple[int, ...]
    file: Path
    dtype: str
    begin: int
    is_transposed: bool = False
    plus: float = 0.0
    delta: LowRank | None = None
    part: Part | None = None

    def item(self, number: int) -> Weight:
        """One of several tensors that lie one after the other along the first axis."""
        one = self.rows(number, number + 1)
        return replace(one, shape=one.shape[1:])

    def rows(self, begin: int, end: int) -> Weight:
        """Rows from `begin` to `end`."""
        size = math.prod(self.shape[1:]) * TYPES[self.dtype].itemsize
        shape = (end - begin, *self.shape[1:])
        delta = None if self.delta is None else replace(self.delta, left=self.delta.left.rows(begin, end))
        name = f"{self.name}/{begin}:{end}"
        return replace(self, name=name, shape=shape, begin=self.begin + begin * size, delta=delta)

    def interleave(self, groups: int, count: int, number: int) -> Weight:
        """One of `count` tensors whose rows are interleaved in this one, in groups: the first's, the second's ..."""
        shape = (self.shape[0] // count, *self.shape[1:])
        return replace(self, name=f"{self.name}/{number} of {count}", shape=shape, part=Part(groups, count, number))

    def transpose(self) -> Weight:
        """[in, out] of [out, in], as MatMul takes it."""
        return replace(self, name=f"{self.name}/transposed", shape=self.shape[::-1], is_transposed=True)

    def shift(self, number: float) -> Weight:
        """The weight with a number added to all of its elements."""
        return replace(self, name=f"{self.name}/{number:+g}", plus=number)

    def with_delta(self, name: str, left: Weight, right: Weight, scale: float) -> Weight:
        """The weight with left @ right * scale added; `name` tells it from the plain one."""
        return replace(self, name=f"{self.name}/{name}", delta=LowRank(left, right, scale))

    def files(self) -> set[Path]:
        """All files that it is read from."""
        return {self.file} if self.delta is None else {self.file, self.delta.left.file, self.delta.right.file}

    def read(self, contents: Mapping[Path, memoryview | None]) -> Floats:
        """The numbers in float32: those of the file, or one copy.

        Args:
            contents: the files in memory; None where one is not, so that only this tensor is read of it.
        """
        raw = self._read_part(contents)
        if self.delta is not None:
            raw = widen(raw, self.dtype) + self.delta.read(contents)
        dtype = self.dtype if self.delta is None else "F32"
        values = widen(transpose(raw) if self.is_transposed else raw, dtype)
        if self.plus:
            shifted: Floats = values + np.float32(self.plus)
            return shifted
        return values.copy() if is_scratch(values) else values  # rows of one group are not copied

    def is_exact(self) -> bool:
        """Whether the file has the very numbers that are read, in a smaller type or in float32."""
        return self.delta is None and not self.plus

    def read_narrow(self, contents: Mapping[Path, memoryview | None]) -> npt.NDArray[np.generic]:
        """The numbers of `is_exact` in the file's own type; of bfloat16 the bits."""
        raw = self._read_part(contents)
        values = transpose(raw) if self.is_transposed else np.ascontiguousarray(raw)
        return values.copy() if is_scratch(values) else values

    def _read_part(self, contents: Mapping[Path, memoryview | None]) -> npt.NDArray[np.generic]:
        """The numbers as the file has them, in the shape that it has."""
        file_shape = self.shape[::-1] if self.is_transposed else self.shape
        raw = self._read_values(contents[self.file])
        return raw.reshape(file_shape) if self.part is None else self.part.of(raw, file_shape)

    def is_table(self) -> bool:
        """Whether single rows can be read."""
        return self.is_exact() and len(self.shape) == 2 and not self.is_transposed and self.part is None

    def read_rows(
        self, contents: Mapping[Path, memoryview | None], numbers: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.generic]:
        """Rows of `is_table` in the file's own type, [N, E]."""
        kind, content = TYPES[self.dtype], contents[self.file]
        if content is not None:
            whole = np.frombuffer(content[self.begin :], kind, math.prod(self.shape))
            return whole.reshape(self.shape)[numbers]
        result = np.empty((len(numbers), self.shape[1]), kind)
        with self.file.open("rb", buffering=0) as stream:
            for row, number in zip(result, numbers, strict=True):
                stream.seek(self.begin + int(number) * row.nbytes)
                if not fill(stream, row.view(np.uint8)):
                    raise BuildError(f"{self.file}: its end is missing; download the model again")
        return result

    def _read_values(self, content: memoryview | None) -> npt.NDArray[np.generic]:
        """The numbers one after the other, as the file has them."""
        dtype, count = TYPES[self.dtype], math.prod(self.shape) * (1 if self.part is None else self.part.count)
        if content is not None:
            return np.frombuffer(content[self.begin : self.begin + count * dtype.itemsize], dtype)
        # What is copied later is read into one buffer per thread: small pieces of memory that come and go would not be
        # given back. Large ones are.
        is_copied = self.is_transposed or self.part is not None or dtype.itemsize != np.dtype(np.float32).itemsize
        is_copied = is_copied and count * dtype.itemsize <= MOST_SCRATCH_BYTES
        raw = scratch(count, dtype) if is_copied and self.delta is None else np.empty(count, dtype)
        with self.file.open("rb", buffering=0) as stream:
            stream.seek(self.begin)
            if not fill(stream, raw.view(np.uint8)):
                raise BuildError(f"{self.file}: its end is missing; download the model again")
        return raw


@dataclass(frozen=True)
class Part:
    """The rows of one of `count` tensors, which are interleaved in `groups` groups."""

    groups: int
    count: int
    number: int

    def of(self, raw: npt.NDArray[np.generic], shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
        """Them, in this shape, of the numbers of all."""
        rows = shape[0] // self.groups
        return raw.reshape(self.groups, self.count, rows, *shape[1:])[:, self.number].reshape(shape)


@dataclass(frozen=True)
class LowRank:
    """left @ right * scale."""

    left: Weight
    right: Weight
    scale: float

    def read(self, contents: Mapping[Path, memoryview | None]) -> Floats:
        """The product in float32."""
        product: Floats = self.left.read(contents) @ self.right.read(contents)
        product *= np.float32(self.scale)
        return product


class Tensors:
    """The tensors of a model's files, under a prefix of their names.

    Args:
        files: safetensors files, the parts of one model.

    Raises:
        BuildError: a file is damaged, or a tensor is in two of them.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._entries: dict[str, tuple[Path, Entry]] = {}
        for file in files:
            for name, entry in read_header(file).items():
                if name in self._entries:
                    raise BuildError(
                        f"{file}: has '{name}', which {self._entries[name][0].name} has, too: they belong to different "
                        "models; download the folder again"
                    )
                self._entries[name] = (file, entry)
        self._read_names: set[str] = set()
        self._prefix = ""
        self.source = files[0].parent if files else Path()

    def below(self, *prefixes: str, member: str) -> Tensors:
        """The tensors below that one of these prefixes which has a tensor named `member`.

        Raises:
            BuildError: no prefix has it, or several do.
        """
        candidates = [prefix for prefix in prefixes if prefix + member in self]
        if len(candidates) != 1:
            names = ", ".join(self._prefix + prefix + member for prefix in candidates or prefixes)
            raise BuildError(
                f"{self.source}: the weights {'have all of' if candidates else 'lack'} {names}, one of which "
                "config.json asks for: they belong to different models, or only a part was downloaded; download the "
                "folder again"
            )
        result = copy.copy(self)
        result._prefix = self._prefix + candidates[0]
        return result

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._entries

    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._entries)

    def take(self, name: str, *shape: int) -> Weight:
        """A tensor of this shape.

        Raises:
            BuildError: it is not there, or has another shape than config.json asks for.
            NotDefinedError: its type is none of float32, float16 and bfloat16.
        """
        full = self._prefix + name
        if full not in self._entries:
            raise BuildError(
                f"{self.source}: the weights lack {full}, which config.json asks for: they belong to different models, "
                "or only a part was downloaded; download the folder again"
            )
        file, entry = self._entries[full]
        if entry.shape != shape:
            raise BuildError(
                f"{file}: '{full}' is {list(entry.shape)}, config.json asks for {list(shape)}: they belong to "
                "different models; download the folder again"
            )
        if entry.dtype not in TYPES:
            raise NotDefinedError(f"'{full}' has the type {entry.dtype}, and {', '.join(TYPES)} alone are known")
        if entry.end - entry.begin != math.prod(shape) * TYPES[entry.dtype].itemsize:
            raise BuildError(f"{file}: '{full}' does not have the size that its shape says; download the model again")
        self._read_names.add(full)
        return Weight(full, shape, file, entry.dtype, entry.begin)

    def ignore(self, *names: str) -> None:
        """Leaves out tensors that nothing is computed with: all whose names contain one of these parts."""
        self._read_names.update(full for full in self._entries if any(name in full for name in names))

    def leave(self, *names: str) -> None:
        """Leaves tensors of these full names to somebody else."""
        self._read_names.update(names)

    def check_all_read(self) -> None:
        """Refuses tensors whose use is not known.

        Raises:
            NotDefinedError: naming them.
        """
        unknown = sorted(set(self._entries) - self._read_names)
        if unknown:
            raise NotDefinedError(f"nothing is known of tensors such as '{unknown[0]}' ({len(unknown)} in all)")
