"""The CUDA launchers as Python functions on torch tensors, through libpadfree_kernels.so (see bindings.cpp)."""

# SPDX-License-Identifier: Apache-2.0
import ctypes
import functools
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

DATA_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int32: 3}
ATTENTION_KERNELS = {"auto": 0, "mma": 1, "sm90": 2, "short": 3, "window": 4, "disentangled mma": 5, "wide": 6}
ACTIVATIONS = {"none": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "silu": 4, "sigmoid": 5}
ATTENTION_BIASES = {"none": 0, "slope": 1, "distance": 2, "disentangled": 3}
POOL_MODES = {"first": 0, "last": 1, "mean": 2, "max": 3}
MMA = (-1, 0, 0, 0)
"""The tiling that selects the GEMM kernels for GPUs other than Hopper, with the tile that they choose."""
MMA_TILES = [(-2 - number, 0, 0, 1) for number in range(8)]
"""The tilings that select one of their tiles (plugins/linear/mma/menu.h)."""
MMA_FP16_SUMS = (-5, 1, 0, 1)
"""The one of them that adds products in fp16, 16 at a time."""
MMA_TAIL = 16
"""In place of their parts: blocks share the tiles that are left over of whole waves."""
POOL_EACH = 4
"""The mode in which x has one row per sequence."""

LIBRARY = os.environ.get("PADFREE_KERNELS_LIBRARY", "")
"""Path of libpadfree_kernels.so, built with -DPADFREE_KERNEL_TESTS=ON."""

Int64 = ctypes.c_int64
Float = ctypes.c_float


def call(name: str, *arguments: Any) -> None:
    """Calls one launcher on torch's current stream; tensors pass as pointers, None as null. Raises on a bad status."""
    function = getattr(library(), name)
    converted = [_convert(argument) for argument in arguments]
    status = function(*converted, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if status != 0:
        raise RuntimeError(f"{name} returned CUDA error {status}")


def has_hopper_kernels() -> bool:
    """Whether the library runs Hopper's own kernels on this GPU: not where it was built as PTX for older ones."""
    return bool(library().padfreeHasHopperKernels() == 1)


def schedule(
    seq_lens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    tokens: int,
    *,
    token_index: torch.Tensor | None = None,
    padded_length: int = 0,
    positions: torch.Tensor | None = None,
    tasks: torch.Tensor | None = None,
    heads: int = 1,
    multiprocessors: int = 0,
    prefix: torch.Tensor | None = None,
    causal: bool = False,
) -> None:
    """Prefix sums of seq_lens [B]; on demand also token_index [T], positions [T], and tasks [N, 4] for `heads` heads.

    N is at least `task_list_entries`; multiprocessors: how many the tasks are cut for, 0: as many as the device has.
    prefix [B]: sequences from which positions continue. causal: whether tasks are ordered by
    their costs in causal attention.
    """
    call(
        "padfreeSchedule", seq_lens, cu_seqlens, token_index, positions, tasks, len(seq_lens), tokens,
        padded_length, heads, 0 if tasks is None else len(tasks) - 1, multiprocessors, prefix, int(causal),
    )  # fmt: skip


def task_list_entries(tokens: int, batch: int, heads: int) -> int:
    """Rows of the tensor that holds a task list."""
    function = library().padfreeTaskListEntries
    function.restype = Int64
    return int(function(tokens, batch, heads))


def make_tasks(cu_seqlens: torch.Tensor, tokens: int, heads: int, *, causal: bool = False) -> torch.Tensor:
    """The task list [N, 4] of an attention over these sequences."""
    batch = len(cu_seqlens) - 1
    tasks = cu_seqlens.new_empty(task_list_entries(tokens, batch, heads), 4)
    schedule(cu_seqlens.diff(), torch.empty_like(cu_seqlens), tokens, tasks=tasks, heads=heads, causal=causal)
    return tasks


@dataclass(frozen=True)
class Positions:
    """What attention does with the positions i of a row and j of a key (see attention/launch.h).

    window: keys that a row sees on its left and on its right, -1: all. At most one of these is given: slopes [H] or
    distance_bias [H, 2R + 1], both float32, or k_position and q_position [2R + 1, H*D], of which one may be missing.
    """

    window: tuple[int, int] = (-1, -1)
    slopes: torch.Tensor | None = None
    distance_bias: torch.Tensor | None = None
    k_position: torch.Tensor | None = None
    q_position: torch.Tensor | None = None

    @property
    def bias(self) -> str:
        """The kind of bias: none, slope, distance or disentangled."""
        if self.k_position is not None or self.q_position is not None:
            return "disentangled"
        if self.slopes is not None:
            return "slope"
        return "none" if self.distance_bias is None else "distance"

    @property
    def bias_range(self) -> int:
        """R, or 0 without a table."""
        for table in (self.k_position, self.q_position):
            if table is not None:
                return len(table) // 2
        return 0 if self.distance_bias is None else self.distance_bias.shape[1] // 2


def attention(
    operands: Sequence[torch.Tensor],
    cu_seqlens: torch.Tensor,
    y: torch.Tensor,
    *,
    scale: float,
    max_seq_len: int = 0,
    biases: Sequence[torch.Tensor] | None = None,
    kernel: str = "auto",
    tasks: torch.Tensor | None = None,
    positions: Positions | None = None,
    y_scale: float = 1.0,
    early_lengths: bool = False,
    prefix: torch.Tensor | None = None,
) -> None:
    """Attention over three views [T, H, D] of any token and head stride; y is [T, H*D], biases are views [H, D].

    K and V may have fewer heads, if their number divides H. y may be torch.float8_e4m3fn: results divided by y_scale.

    kernel: the one to launch, "auto" for the plugin's own choice. tasks: made first if they are not given.
    prefix: int32 [B], see attention/launch.h.
    """
    arguments: list[Any] = []
    for i, operand in enumerate(operands):
        bias = biases[i] if biases else None
        arguments += [operand, bias, Int64(operand.stride(0)), Int64(operand.stride(1))]
    arguments.append(Int64(biases[0].stride(0) if biases else 0))
    tokens, heads, head_size = operands[0].shape
    if tasks is None:
        tasks = make_tasks(cu_seqlens, tokens, heads, causal=positions is not None and positions.window[1] == 0)
    indices = positions or Positions()
    call(
        "padfreeAttention",
        *arguments,
        cu_seqlens,
        tasks,
        len(tasks) - 1,
        y,
        tokens,
        len(cu_seqlens) - 1,
        heads,
        operands[1].shape[1],
        head_size,
        max_seq_len,
        Float(scale),
        *indices.window,
        ATTENTION_BIASES[indices.bias],
        indices.bias_range,
        indices.slopes,
        indices.distance_bias,
        indices.k_position,
        indices.q_position,
        Float(1 / y_scale if y.dtype == torch.float8_e4m3fn else 0.0),
        int(early_lengths),
        prefix,
        DATA_TYPES[operands[0].dtype],
        ATTENTION_KERNELS[kernel],
    )


@dataclass(frozen=True)
class Moments:
    """Layer norms inside a GEMM: moments are float32 [W / 64, T, 2] of rows of width W (see linear/launch.h).

    of_x: those of x, which is normalised except for its mean. of_residual: those of the residual, which is normalised
    and multiplied by residual_scale [N]. out: gets the moments of y.
    """

    of_x: torch.Tensor | None = None
    of_residual: torch.Tensor | None = None
    residual_scale: torch.Tensor | None = None
    out: torch.Tensor | None = None
    epsilon: float = 1e-5
    rms: bool = False


@dataclass(frozen=True)
class Rotation:
    """Rotation of pairs of a GEMM's first columns: int32 positions [T] and one float32 frequency per pair.

    head_scale: one number per column, by which heads of 128 columns are multiplied when they have been normed; of 256
    with wide_heads.
    """

    positions: torch.Tensor
    frequencies: torch.Tensor
    head_scale: torch.Tensor | None = None
    head_epsilon: float = 0.0
    wide_heads: bool = False

    @property
    def features(self) -> int:
        """How many columns are rotated."""
        return 2 * len(self.frequencies)


@functools.cache
def linear_scratch() -> torch.Tensor:
    """The memory for blocks that share a tile (kLinearTailScratchBytes in linear/launch.h), of any contents."""
    return torch.randint(-(2**62), 2**62, ((256 * 8 + 192 * 128 * 128 * 4) // 8,), device="cuda")


class LinearCall(ctypes.Structure):
    """A GEMM's parameters, with the layout of `LinearCall` in tests/kernels/bindings.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "x", "weight", "scale", "bias", "residual", "x_moments", "residual_moments",
            "residual_scale", "positions", "frequencies", "head_scale", "y", "y_e4m3", "y_int8",
            "y_factors", "moments", "scratch",
        )),
        *((name, ctypes.c_int) for name in ("T", "K", "N", "rotary_features")),
        *((name, ctypes.c_float) for name in ("x_epsilon", "residual_epsilon", "head_epsilon", "y_scale")),
        *((name, ctypes.c_int) for name in ("activation", "int8", "gated", "rms", "type", "wide_heads")),
    )  # fmt: skip


@dataclass(frozen=True)
class E4m3:
    """A GEMM of e4m3: x [T, K] and weight [N, K] are torch.float8_e4m3fn, and their sums are multiplied by scale [N].

    y: gets the results divided by y_scale; None if they are only written in the other type.
    """

    scale: torch.Tensor
    y: torch.Tensor | None = None
    y_scale: float = 1.0


@dataclass(frozen=True)
class Int8:
    """A GEMM of int8: x [T, K] and weight [N, K] are torch.int8, and their sums are multiplied by scale [N].

    y: gets the results times y_factors; None if they are only written in the other type.
    """

    scale: torch.Tensor
    y: torch.Tensor | None = None
    y_factors: torch.Tensor | None = None


class NoKernel(RuntimeError):
    """No kernel is compiled for the GEMM with this tiling (plugins/linear/menu.h)."""


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor | None,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    moments: Moments | None = None,
    rotation: Rotation | None = None,
    activation: str = "none",
    gated: bool = False,
    e4m3: E4m3 | None = None,
    int8: Int8 | None = None,
    dtype: torch.dtype | None = None,
    tiling: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> None:
    """y [T, N] = activation(x [T, K] @ weight [K, N] + bias) + residual; with `moments`, x or the residual is normed.

    gated: y is [T, N / 2]. dtype: of bias and residual; y's if there is a y. tiling: tokens per tile, tiles of features
    and of tokens per cluster, parts of the reduction (0: resident input); all zeros leave the choice to the kernel.

    Raises:
        NoKernel: there is none with this tiling.
        RuntimeError: the launcher refuses the call.
    """
    tokens, depth = x.shape
    norms, narrow = moments or Moments(), e4m3 or int8
    parameters = LinearCall(
        x=x.data_ptr(), weight=weight.data_ptr(), scale=_address(narrow and narrow.scale), bias=_address(bias),
        residual=_address(residual), x_moments=_address(norms.of_x),
        residual_moments=_address(norms.of_residual), residual_scale=_address(norms.residual_scale),
        positions=_address(rotation and rotation.positions), frequencies=_address(rotation and rotation.frequencies),
        head_scale=_address(rotation and rotation.head_scale), head_epsilon=rotation.head_epsilon if rotation else 0.0,
        y=_address(y), y_e4m3=_address(e4m3 and e4m3.y), y_int8=_address(int8 and int8.y),
        y_factors=_address(int8 and int8.y_factors), moments=_address(norms.out), scratch=linear_scratch().data_ptr(),
        T=tokens, K=depth,
        N=weight.shape[0 if narrow else 1], rotary_features=rotation.features if rotation else 0,
        x_epsilon=norms.epsilon, residual_epsilon=norms.epsilon, y_scale=e4m3.y_scale if e4m3 else 1.0,
        activation=ACTIVATIONS[activation], int8=int(int8 is not None), gated=int(gated), rms=int(norms.rms),
        wide_heads=int(rotation is not None and rotation.wide_heads),
        type=DATA_TYPES[dtype or (torch.float16 if y is None else y.dtype)],
    )  # fmt: skip
    if (
        tiling[0] not in {0, MMA[0]}
        and tokens > 0
        and not library().padfreeHasTiling(ctypes.byref(parameters), *tiling)
    ):
        raise NoKernel(f"no kernel with tiling {tiling}")
    call("padfreeLinear", ctypes.byref(parameters), *tiling)


def rotary(
    x: torch.Tensor,
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    y: torch.Tensor,
    *,
    heads: int,
    head_size: int,
    interleaved: bool = False,
) -> None:
    """y [T, W] is x with the pairs of its first heads rotated by int32 positions [T] times frequencies [D / 2]."""
    call(
        "padfreeRotary", x, positions, frequencies, y, *x.shape, heads, head_size, int(interleaved),
        DATA_TYPES[x.dtype],
    )  # fmt: skip


def qk_norm_rotary(
    qkv: torch.Tensor,
    gammas: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    qk: torch.Tensor,
    *,
    heads: tuple[int, int],
    epsilon: float,
    interleaved: bool = False,
) -> None:
    """qk [T, (H + KVH) * D] is the first columns of qkv [T, W], with every head normed, scaled and rotated."""
    call(
        "padfreeQkNormRotary", qkv, *gammas, positions, frequencies, qk, *qkv.shape, *heads, gammas[0].numel(),
        ctypes.c_float(epsilon), int(interleaved), DATA_TYPES[qkv.dtype],
    )  # fmt: skip


def measured_tilings(
    depth: int,
    features: int,
    activation: str,
    dtype: torch.dtype,
    min_tokens: int,
    max_tokens: int,
    *,
    residual: bool = False,
    gated: bool = False,
    rotary_features: int = 0,
    norms: Collection[str] = (),
    e4m3: Collection[str] = (),
) -> list[tuple[int, tuple[int, int, int, int]]]:
    """The fastest tilings, each up to a token count, for a GEMM with a bias: what an engine's build measures.

    norms: whose moments are used, of "x", "residual" and "y". e4m3: which results a GEMM of e4m3 has, "y" and
    "y_e4m3"; empty for GEMMs of other types.
    """
    capacity = 1024
    ranges = (ctypes.c_int * (2 * capacity))()
    count = ctypes.c_int()
    there = torch.empty(1, device="cuda").data_ptr()
    parameters = LinearCall(
        scale=there if e4m3 else None, bias=there, residual=there if residual else None,
        x_moments=there if "x" in norms else None,
        residual_moments=there if "residual" in norms else None,
        residual_scale=there if "residual" in norms else None, moments=there if "y" in norms else None,
        y=there if not e4m3 or "y" in e4m3 else None, y_e4m3=there if "y_e4m3" in e4m3 else None, y_scale=1.0,
        K=depth, N=features, rotary_features=rotary_features, activation=ACTIVATIONS[activation], gated=int(gated),
        type=DATA_TYPES[dtype],
    )  # fmt: skip
    call(
        "padfreeMeasureLinear", ctypes.byref(parameters), min_tokens, max_tokens, capacity, ranges, ctypes.byref(count)
    )
    if count.value > capacity:
        raise RuntimeError(f"{count.value} ranges; allowed: {capacity}")
    pairs = zip(ranges[0 : 2 * count.value : 2], ranges[1 : 2 * count.value : 2], strict=True)
    return [(tokens, tiling_of(choice)) for tokens, choice in pairs]


def tiling_of(choice: int) -> tuple[int, int, int, int]:
    """The tiling that an engine's choice stands for, one of Hopper's or of MMA_TILES."""
    parts = ctypes.c_int()
    number = int(library().padfreeMmaTilingOf(choice, ctypes.byref(parts)))
    if number >= 0:
        return -2 - number, choice >> 29 & 1, 0, parts.value
    return choice & 0xFFFF, choice >> 16 & 15, choice >> 20 & 15, choice >> 24 & 15


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _convert(argument: Any) -> Any:
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return argument


_loaded: dict[str, ctypes.CDLL] = {}


def library() -> ctypes.CDLL:
    """libpadfree_kernels.so."""
    return _loaded.setdefault(LIBRARY, ctypes.CDLL(LIBRARY))
