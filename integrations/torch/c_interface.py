# SPDX-License-Identifier: Apache-2.0
"""include/padfree.h for PyTorch's tensors, through ctypes: nothing is compiled against PyTorch's C++ interface."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache

import torch
from padfree.runtime import SessionError, plugin_library
from padfree.runtime.c_api import API_VERSION, AttentionArgs, Operand, open_library
from padfree.runtime.gpu import device_code

TYPES: Mapping[torch.dtype, int] = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""padfree_type."""
_NO_BIAS, _SLOPES = 0, 1
_ALIGNMENT = 16


@cache
def library() -> ctypes.CDLL:
    """libpadfree.so.

    Raises:
        SessionError: there is none, or one of another version of the interface.
    """
    path = plugin_library.find()
    try:
        opened_library = open_library(path)
    except (OSError, AttributeError) as error:
        raise SessionError(f"{path}: holds no C interface ({error}); install padfree again") from error
    version = opened_library.padfree_api_version()
    if version < API_VERSION:
        raise SessionError(
            f"{path}: version {version} of the C interface, needed: {API_VERSION}; install padfree again"
        )
    return opened_library


@cache
def check_gpu(device: int) -> None:
    """Raises SessionError where the library has no code for this GPU."""
    major, minor = torch.cuda.get_device_capability(device)
    device_code.require_for(torch.cuda.get_device_name(device), f"{major}.{minor}")


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied where its rows do not lie as the kernels read them: whole, at multiples of 16 bytes."""
    size = tensor.element_size()
    whole = tensor.stride(-1) == 1 and all(step >= tensor.shape[-1] for step in tensor.stride()[:-1])
    aligned = all(step * size % _ALIGNMENT == 0 for step in tensor.stride()[:-1])
    return (
        tensor
        if whole and aligned and tensor.data_ptr() % _ALIGNMENT == 0
        else tensor.clone(memory_format=torch.contiguous_format)
    )


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    slopes: torch.Tensor | None,
    y: torch.Tensor,
    max_seqlen: int,
    scale: float,
    window: tuple[int, int],
) -> None:
    """padfree_attention on the current stream.

    Raises:
        SessionError: the library has no code for the GPU or refuses the arguments, or CUDA refuses the launch.
    """
    arguments = AttentionArgs(
        struct_size=ctypes.sizeof(AttentionArgs),
        type=TYPES[q.dtype],
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_size=q.shape[2],
        num_tokens=q.shape[0],
        num_sequences=cu_seqlens.shape[0] - 1,
        max_seq_len=max_seqlen,
        scale=scale,
        window_left=window[0],
        window_right=window[1],
        q=_operand(q),
        k=_operand(k),
        v=_operand(v),
        cu_seqlens=cu_seqlens.data_ptr(),
        y=y.data_ptr(),
        bias=_NO_BIAS if slopes is None else _SLOPES,
        slopes=None if slopes is None else slopes.data_ptr(),
    )
    check_gpu(q.device.index)
    with torch.cuda.device(q.device):
        stream = torch.cuda.current_stream().cuda_stream
        if library().padfree_attention(ctypes.byref(arguments), stream):
            raise SessionError(library().padfree_last_error().decode())


def _operand(tensor: torch.Tensor) -> Operand:
    return Operand(data=tensor.data_ptr(), token_stride=tensor.stride(0), head_stride=tensor.stride(1))
