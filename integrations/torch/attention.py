# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences of any lengths as a PyTorch operator: padfree's kernel on GPUs, plain PyTorch on CPUs."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from padfree.runtime import SessionError

from . import c_interface

_NAME = "padfree::varlen_attention"


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int = 0,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(q k^T * scale + bias) v inside each sequence, head and window. Inference alone.

    Works under torch.compile and in CUDA graphs; nothing waits for the GPU, and lengths stay there.

    Args:
        q: [T, H, D], float32, float16 or bfloat16, D a multiple of 8 up to 256; T are the tokens of all sequences one
            after the other. Rows may lie apart, as those of a slice of [T, 3, H, D] do.
        k: [T, KVH, D], where KVH divides H: head h reads head h / (H / KVH) of K and V.
        v: as k.
        cu_seqlens: int32 [B + 1], from 0 on: sequence b has tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1. Tokens
            after the last one are filler, and their rows of the result are zeros.
        max_seqlen: the longest sequence that is expected, to choose among kernels; 0: unknown.
        scale: factor of the scores; None: 1 / sqrt(D).
        causal: rows see no keys after their own.
        window: how many keys before and after its own a row sees; -1: all.
        slopes: float32 [H]: -slopes[h] * |j - i| is added to the scores of row i and key j.

    Returns:
        [T, H, D].

    Raises:
        SessionError: shapes or types that do not fit, or a gradient that is asked for.
    """
    tensors = (q, k, v) if slopes is None else (q, k, v, slopes)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise SessionError(
            "varlen_attention has no gradient; call it under torch.inference_mode() or torch.no_grad(), and train with "
            "PyTorch's own attention"
        )
    _check(q, k, v, cu_seqlens, slopes)
    left, right = window
    return _operator(
        q,
        k,
        v,
        cu_seqlens,
        slopes,
        max_seqlen,
        1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        left,
        0 if causal else right,
    )


def _check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, slopes: torch.Tensor | None
) -> None:
    if q.dim() != 3 or k.dim() != 3 or k.shape != v.shape or (q.shape[0], q.shape[2]) != (k.shape[0], k.shape[2]):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (q, k, v))
        raise SessionError(f"q, k, v have shapes {shapes}, allowed: [T, H, D] and twice [T, KVH, D]; reshape them")
    if q.shape[1] % k.shape[1]:
        raise SessionError(f"{q.shape[1]} heads of q and {k.shape[1]} of k, allowed: a divisor of q's; repeat k and v")
    if q.dtype not in c_interface.TYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise SessionError(
            f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, allowed: float32, float16 or bfloat16, the same for all"
        )
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype != torch.int32 or cu_seqlens.shape[0] < 1:
        raise SessionError(
            f"cu_seqlens is {cu_seqlens.dtype} {list(cu_seqlens.shape)}, allowed: int32 [B + 1]; use .to(torch.int32)"
        )
    if slopes is not None and (slopes.dtype != torch.float32 or list(slopes.shape) != [q.shape[1]]):
        raise SessionError(f"slopes is {slopes.dtype} {list(slopes.shape)}, allowed: float32 [H]; use .float()")
    if any(tensor.device != q.device for tensor in (k, v, cu_seqlens, *([] if slopes is None else [slopes]))):
        raise SessionError("q, k, v, cu_seqlens and slopes are on several devices; move them to that of q")


@torch.library.custom_op(_NAME, mutates_args=(), device_types="cuda")  # type: ignore[untyped-decorator]
def _operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    slopes: torch.Tensor | None,
    max_seqlen: int,
    scale: float,
    window_left: int,
    window_right: int,
) -> torch.Tensor:
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not q.shape[0]:
        return y
    q, k, v = (c_interface.readable(tensor) for tensor in (q, k, v))
    cu_seqlens = cu_seqlens.contiguous()
    slopes = None if slopes is None else slopes.contiguous()
    c_interface.attention(q, k, v, cu_seqlens, slopes, y, max_seqlen, scale, (window_left, window_right))
    return y


@_operator.register_fake  # type: ignore[untyped-decorator]
def _shape(q: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@_operator.register_kernel("cpu")  # type: ignore[untyped-decorator]
def _on_cpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    slopes: torch.Tensor | None,
    max_seqlen: int,  # noqa: ARG001 - a hint for the kernels of GPUs
    scale: float,
    window_left: int,
    window_right: int,
) -> torch.Tensor:
    y = torch.zeros(q.shape, dtype=q.dtype)
    repeats = q.shape[1] // k.shape[1]
    for start, end in pairwise(cu_seqlens.tolist()):
        rows, keys, values = (
            tensor[start:end].float().transpose(0, 1).repeat_interleave(times, dim=0)
            for tensor, times in ((q, 1), (k, repeats), (v, repeats))
        )
        at = torch.arange(end - start)
        distance = at[None, :] - at[:, None]
        scores = rows @ keys.transpose(1, 2) * scale
        if slopes is not None:
            scores -= slopes[:, None, None] * distance.abs()
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if window_left >= 0:
            hidden |= distance < -window_left
        if window_right >= 0:
            hidden |= distance > window_right
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        y[start:end] = (weights @ values).transpose(0, 1).to(q.dtype)
    return y
