# SPDX-License-Identifier: Apache-2.0
"""The door on the device: lengths, ids, positions and slots that kernels read.

Every operand lies in a block of its own with unmapped addresses around it, at the block's end or at its beginning: a
read or a write outside is a fault, which ends the process, and anything written next to an output is found.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.skips import without

from .damage import NUMBERS
from .finds import FindError

if TYPE_CHECKING:
    import torch

Case = dict[str, Any]
LENGTHS = ([1], [63, 64, 65, 1, 0], [5, 200, 1, 77, 0, 0, 128], [0, 0], [1 + 7 * i % 40 for i in range(30)], [400, 3])
FILLER, VOCABULARY, POSITIONS, KINDS, WIDTH_OF_LINEAR = 9, 97, 60, 2, 128
HINTS = (0, 1, 64, 100, 128, 129, 512, 2**31 - 1)
WINDOWS = ((-1, -1), (0, 0), (3, 5), (64, 64), (200, 0), (2**31 - 1, 2**31 - 1))
HEADS = ((2, 2, 64), (4, 2, 32), (1, 1, 128), (3, 3, 72))  # heads of queries, heads of keys, head size
TYPES = ("float16", "bfloat16", "float32")
BIAS_RANGE = 8
SHORT, NEAR = 128, 64  # longest sequence of the kernel for short ones, widest window of the kernel for windows
MMA_OF_DISENTANGLED = "disentangled mma"  # on Hopper, only for heads larger than 64
DAMAGED = ("seq_lens", "cu_seqlens", "ids", "types", "positions", "token_index")
FAULT = 86  # exit code
REFUSALS = ("CUDA error 1", "CUDA error 209")  # invalid value, no kernel for this GPU
BLOCK_BYTES = 1 << 20
POISON = 0xFF  # NaN as floats, -1 as integers


def missing() -> str | None:
    """The reason why nothing can be run here; None if it can."""
    if not os.environ.get("PADFREE_KERNELS_LIBRARY"):
        return "PADFREE_KERNELS_LIBRARY does not name libpadfree_kernels.so: CONTRIBUTING.md says how to build it"
    reason = without("torch", "cuda")
    if reason is not None:
        return reason
    from padfree.runtime.gpu.cuda import device_count

    return None if device_count() else "there is no GPU"


@functools.cache
def bases() -> Mapping[str, bytes]:
    """Undamaged inputs of all kernels, as JSON."""
    results = {}
    for index, lengths in enumerate(LENGTHS):
        rng = np.random.default_rng(index)
        tokens, extent = sum(lengths) + FILLER, max(1, *lengths)
        slots = [row * extent + slot for row, length in enumerate(lengths) for slot in range(length)]
        heads, kv_heads, size = HEADS[index % len(HEADS)]
        case: Case = {
            "seq_lens": lengths, "cu_seqlens": np.cumsum([0, *lengths]).tolist(),
            "ids": rng.integers(0, VOCABULARY, tokens).tolist(), "types": rng.integers(0, KINDS, tokens).tolist(),
            "positions": rng.integers(0, POSITIONS, tokens).tolist(), "token_index": slots + [-1] * FILLER,
            "extent": extent, "max_seq_len": HINTS[index], "window": WINDOWS[index], "heads": heads,
            "kv_heads": kv_heads, "head_size": size, "type": TYPES[index % len(TYPES)], "at_end": True,
        }  # fmt: skip
        results[f"lengths {index}"] = json.dumps(case).encode()
    return results


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """Replaces some numbers, reorders them or makes them all alike; shapes stay, since no caller sends them as data."""
    case: Case = json.loads(data)
    tokens = len(case["ids"])
    near = (tokens, tokens - 1, tokens + 1, tokens // 2, -tokens, 64, 128)
    values = [value for value in NUMBERS if -(2**31) <= value < 2**31] + list(near)
    for name in rng.permutation(DAMAGED)[: int(rng.integers(1, 4))]:
        numbers, kind = case[str(name)], int(rng.integers(4))
        if kind == 0:
            numbers[:] = [int(number) for number in rng.permutation(numbers)]
        elif kind == 1:
            numbers[:] = [int(rng.choice(values))] * len(numbers)
        else:
            for _ in range(int(rng.integers(1, 5))):
                numbers[int(rng.integers(len(numbers)))] = int(rng.choice(values))
    case["max_seq_len"], case["at_end"] = int(rng.choice(HINTS)), bool(rng.random() < 0.7)
    case["window"] = list(WINDOWS[int(rng.integers(len(WINDOWS)))])
    case["heads"], case["kv_heads"], case["head_size"] = HEADS[int(rng.integers(len(HEADS)))]
    case["type"] = TYPES[int(rng.integers(len(TYPES)))]
    return json.dumps(case).encode()


class Memory:
    """Operands of one case, each in a block of its own, which is reused for the next case."""

    def __init__(self) -> None:
        import torch
        from padfree.runtime.gpu.cuda_memory import FixedBlock

        self._torch, self._new = torch, functools.partial(FixedBlock, torch.cuda.current_device())
        torch.zeros(1, device="cuda")  # creates a context
        self._blocks: list[Any] = []
        self._wholes: list[torch.Tensor] = []
        self._taken: list[tuple[str, int, int]] = []
        self.at_end = True

    def begin(self, at_end: bool) -> None:
        """Forgets the previous case."""
        self.at_end = at_end
        self._taken.clear()

    def empty(self, name: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """A tensor full of poison; the rest of its block is poison, too."""
        kind = getattr(self._torch, dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        index = len(self._taken)
        if index == len(self._blocks):
            self._blocks.append(self._new())
            self._blocks[-1].reserve(BLOCK_BYTES)
            self._wholes.append(self._torch.as_tensor(_Bytes(self._blocks[-1]), device="cuda"))
        whole = self._wholes[index]
        whole.fill_(POISON)
        start = (len(whole) - size) // 16 * 16 if self.at_end else 0
        self._taken.append((name, start, start + size))
        return whole[start : start + size].view(kind).view(shape)

    def fill(self, name: str, values: Any, dtype: str) -> torch.Tensor:
        """A tensor of these values."""
        source = self._torch.as_tensor(np.asarray(values))
        result = self.empty(name, tuple(source.shape), dtype)
        result.copy_(source)
        return result

    def check(self) -> None:
        """Raises FindError if anything next to an operand was written."""
        for (name, start, end), whole in zip(self._taken, self._wholes, strict=False):
            if bool((whole[:start] != POISON).any()) or bool((whole[end:] != POISON).any()):
                raise FindError(f"a kernel wrote beside '{name}'")


class _Bytes:
    """A block in the form that torch accepts."""

    def __init__(self, block: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (block.size_bytes,),
            "typestr": "|u1",
            "data": (block.address, False),
            "version": 3,
        }


@functools.cache
def _memory() -> Memory:
    return Memory()


def read(data: bytes, _: Path) -> None:
    """Runs every kernel on the case."""
    case, memory = json.loads(data), _memory()
    for kernels in (_rows, _attention, _gemms):
        memory.begin(case["at_end"])
        for kernel, launch in kernels(case, memory):
            _run(kernel, launch)
        memory.check()


def _run(kernel: str, launch: Callable[[], None]) -> None:
    """Waits for a kernel, which may have been refused; after a fault CUDA no longer works, so the process ends."""
    import torch

    try:
        launch()
        torch.cuda.synchronize()
    except RuntimeError as error:
        if not any(str(error).endswith(refusal) for refusal in REFUSALS):
            sys.stderr.write(f"{kernel}: {error}\n")
            sys.stderr.flush()
            os._exit(FAULT)


def _rows(case: Case, m: Memory) -> Iterator[tuple[str, Callable[[], None]]]:
    """The kernels that move rows, with one or two variants of each."""
    from tests.support.launchers import DATA_TYPES, POOL_MODES, Float, Int64, call, rotary, schedule

    batch, tokens, extent, kind = len(case["seq_lens"]), len(case["ids"]), case["extent"], case["type"]
    heads, size = case["heads"], case["head_size"]
    width, slots = heads * size, Int64(batch * extent)
    ints = {name: m.fill(name, case[name], "int32") for name in DAMAGED}
    x = m.fill("x", _numbers(tokens, width), kind)
    padded = m.fill("padded", _numbers(batch * extent, width), kind)
    y, back = m.empty("y", (tokens, width), kind), m.empty("back", (batch * extent, width), kind)
    row = Int64(width * x.element_size())
    yield "pack", lambda: call("padfreePack", padded, ints["token_index"], y, tokens, slots, row)
    yield "unpack", lambda: call("padfreeUnpack", x, ints["token_index"], back, tokens, slots, row)
    mask = np.resize([*case["ids"], *case["seq_lens"]], batch * extent)
    index = [m.fill("mask", mask, "int32"), m.empty("index", (batch * extent,), "int32")]
    index += [m.empty("lengths", (batch,), "int32"), m.empty("num_tokens", (1,), "int32")]
    yield "index", lambda: call("padfreeIndex", *index, batch, extent)
    starts, positions = m.empty("starts", (batch + 1,), "int32"), m.empty("counted", (tokens,), "int32")
    slot = m.empty("slot", (tokens,), "int32")
    yield (
        "schedule",
        lambda: schedule(ints["seq_lens"], starts, tokens, token_index=slot, padded_length=extent, positions=positions),
    )
    tables = [m.fill("table", _numbers(rows, width), kind) for rows in (VOCABULARY, POSITIONS, KINDS, 1)]
    for inputs in (None, ints["positions"]):
        arguments = (ints["ids"], ints["types"], inputs, ints["cu_seqlens"], *tables, None, y, tokens, batch, width)
        sizes = (VOCABULARY, POSITIONS, KINDS, 3, Float(1e-5), DATA_TYPES[x.dtype])
        yield "embedding", functools.partial(call, "padfreeEmbedding", *arguments, *sizes)
    pooled = m.empty("pooled", (batch, width), kind)
    for mode, number in POOL_MODES.items():
        arguments = (x, ints["cu_seqlens"], pooled, tokens, batch, width, number, 1, DATA_TYPES[x.dtype])
        yield f"pool {mode}", functools.partial(call, "padfreePool", *arguments)
    frequencies = m.fill("frequencies", np.linspace(0.1, 1, size // 2), "float32")
    yield "rotary", lambda: rotary(x, ints["positions"], frequencies, y, heads=heads, head_size=size)


def _attention(case: Case, m: Memory) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every kernel with every bias, on the offsets as given and on those that the schedule makes of the lengths."""
    from tests.support.launchers import ATTENTION_KERNELS, Positions, attention, schedule, task_list_entries

    batch, tokens, kind = len(case["seq_lens"]), len(case["ids"]), case["type"]
    heads, kv_heads, size = case["heads"], case["kv_heads"], case["head_size"]
    lengths = m.fill("seq_lens", case["seq_lens"], "int32")
    inputs, result = m.fill("cu_seqlens", case["cu_seqlens"], "int32"), m.empty("starts", (batch + 1,), "int32")
    tasks = m.empty("tasks", (task_list_entries(tokens, batch, heads), 4), "int32")
    yield "schedule of tasks", lambda: schedule(lengths, result, tokens, tasks=tasks, heads=heads)
    operands = [m.fill("qkv"[i], _numbers(tokens, n, size), kind) for i, n in enumerate((heads, kv_heads, kv_heads))]
    y = m.empty("y", (tokens, heads * size), kind)
    table = 2 * BIAS_RANGE + 1
    slopes = m.fill("slopes", np.linspace(0.1, 1, heads), "float32")
    distances = m.fill("distances", _numbers(heads, table), "float32")
    tables = [m.fill("table", _numbers(table, heads * size), kind) for _ in range(2)]
    window = tuple(case["window"])
    biases = {
        "plain": Positions(window),
        "slope": Positions(window, slopes=slopes),
        "distance": Positions(window, distance_bias=distances),
        "disentangled": Positions(k_position=tables[0], q_position=tables[1]),
    }
    for (bias, positions), kernel, starts in itertools.product(biases.items(), ATTENTION_KERNELS, (result, inputs)):
        if _takes(kernel, bias, case):
            yield (
                f"attention {kernel}, {bias}",
                functools.partial(
                    attention, operands, starts, y, scale=0.1, max_seq_len=case["max_seq_len"], kernel=kernel,
                    tasks=tasks, positions=positions,
                ),
            )  # fmt: skip


def _takes(kernel: str, bias: str, case: Case) -> bool:
    """Whether a kernel is ever chosen for such attention; "auto" is the choice itself."""
    if kernel == "auto":
        return True
    if case["type"] == "float32":
        return False  # only one kernel takes it
    if kernel == MMA_OF_DISENTANGLED or bias == "disentangled":
        return (kernel, bias) == (MMA_OF_DISENTANGLED, "disentangled") and case["heads"] == case["kv_heads"]
    if kernel == "short":
        return 0 < int(case["max_seq_len"]) <= SHORT
    near = all(0 <= side <= NEAR for side in case["window"])
    return kernel != "window" or (bias == "plain" and near)


def _gemms(case: Case, m: Memory) -> Iterator[tuple[str, Callable[[], None]]]:
    from tests.support.launchers import Rotation, linear

    if case["type"] == "float32":
        return
    tokens, width, kind = len(case["ids"]), WIDTH_OF_LINEAR, case["type"]
    x, y = m.fill("x", _numbers(tokens, width), kind), m.empty("y", (tokens, width), kind)
    weight = m.fill("weight", _numbers(width, width), kind)
    positions = m.fill("positions", case["positions"], "int32")
    rotation = Rotation(positions, m.fill("frequencies", np.linspace(0.1, 1, 32), "float32"))
    yield "linear with rotation", lambda: linear(x, weight, y, rotation=rotation)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
