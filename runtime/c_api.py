# SPDX-License-Identifier: Apache-2.0
"""include/padfree.h for ctypes: attention and packing of libpadfree.so, without TensorRT."""

from __future__ import annotations

import ctypes
from pathlib import Path

Pointer, Int32, Int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
API_VERSION = 1
"""PADFREE_API_VERSION of the structs below."""


class Operand(ctypes.Structure):
    """padfree_operand."""

    _fields_ = (("data", Pointer), ("bias", Pointer), ("token_stride", Int64), ("head_stride", Int64))


class AttentionArgs(ctypes.Structure):
    """padfree_attention_args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *((name, Int32) for name in ("type", "num_heads", "num_kv_heads", "head_size", "num_tokens", "num_sequences")),
        ("max_seq_len", Int32),
        ("scale", ctypes.c_float),
        ("window_left", Int32),
        ("window_right", Int32),
        *((name, Operand) for name in "qkv"),
        ("cu_seqlens", Pointer),
        ("y", Pointer),
        ("tasks", Pointer),
        ("tasks_bytes", Int64),
        ("bias", Int32),
        ("bias_range", Int32),
        *((name, Pointer) for name in ("slopes", "distance_bias", "k_position", "q_position")),
    )


class ScheduleArgs(ctypes.Structure):
    """padfree_schedule_args."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("num_tokens", Int32),
        ("num_sequences", Int32),
        *((name, Pointer) for name in ("seq_lens", "cu_seqlens", "positions", "token_index")),
        ("max_seq_len", Int32),
        ("num_heads", Int32),
        ("tasks", Pointer),
        ("tasks_bytes", Int64),
    )


def open_library(path: Path) -> ctypes.CDLL:
    """The library with the types of its functions."""
    library = ctypes.CDLL(str(path))
    for name in ("padfree_version", "padfree_last_error", "padfree_status_string"):
        getattr(library, name).restype = ctypes.c_char_p
    library.padfree_task_list_bytes.restype = Int64
    for name in ("padfree_pack", "padfree_unpack"):
        getattr(library, name).argtypes = (Pointer, Pointer, Pointer, Int32, Int64, Int64, Pointer)
    for name in ("padfree_attention", "padfree_schedule"):
        getattr(library, name).argtypes = (Pointer, Pointer)
    return library
