# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits with a scale for every block of a row, as the floats that they stand for.

onnxruntime's operators for them multiply, or look up, these floats: only the storage differs.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ...files import Array
from .expansion import Expansion, NotImportable

_BITS = (2, 4, 8)
_INT8_ACTIVATIONS = 4  # of accuracy_level
_BYTE = 8


def matmul_nbits(e: Expansion) -> gs.Tensor:
    """MatMulNBits: x [..., K] times the transpose of W [N, K], each row of which is in blocks."""
    if e.integer("accuracy_level") == _INT8_ACTIVATIONS:
        raise NotImportable("it rounds its activations to int8 (accuracy_level=4), by scales of every row")
    if e.optional_input(4) is not None:
        raise NotImportable("its columns are in another order (input 4)")
    rows, width, block = (e.integer(name) for name in ("N", "K", "block_size"))
    bits = e.integer("bits", 4)
    if bits not in _BITS or min(rows, width, block) <= 0:
        raise NotImportable(f"it has N={rows}, K={width}, block_size={block}, bits={bits}; bits are 2, 4 or 8")
    blocks = -(-width // block)
    codes = _unpack(_values(e, 1, "weight"), bits, (rows, blocks, block))
    zero: Array = np.full((rows, blocks), 1 << (bits - 1), np.float32)
    if e.optional_input(3) is not None:
        zero_points = _values(e, 3, "zero points")
        whole = zero_points.reshape(rows, -1)
        zero = _bits_of(whole, bits)[:, :blocks] if zero_points.dtype == np.uint8 else whole[:, :blocks]
    weight = _scale(codes, zero, _values(e, 2, "scales").reshape(rows, blocks))[:, :width]
    return e.sum(e.op("MatMul", e.input(0, "A"), e.constant(np.ascontiguousarray(weight.T))), e.optional_input(5))


def gather_blocks(e: Expansion) -> gs.Tensor:
    """GatherBlockQuantized: rows of a table [N, K], each of which is in blocks."""
    data, scales = _values(e, 0, "table"), _values(e, 2, "scales")
    axes = e.integer("gather_axis"), e.integer("quantize_axis", 1) % 2
    bits, block = e.integer("bits", 4), e.integer("block_size", 128)
    if data.ndim != 2 or axes != (0, 1) or bits not in _BITS or block <= 0:
        raise NotImportable(f"it takes axis {axes[0]} of a table of {data.ndim} axes, with blocks along axis {axes[1]}")
    is_packed = data.dtype == np.uint8
    whole = _bits_of(data, bits) if is_packed else data.astype(np.float32)
    rows, width = whole.shape
    blocks = -(-width // block)
    zero: Array = np.full((rows, blocks), 1 << (bits - 1) if is_packed else 0, np.float32)
    if e.optional_input(3) is not None:
        zero_points = _values(e, 3, "zero points")
        zero = _bits_of(zero_points, bits)[:, :blocks] if is_packed else zero_points.astype(np.float32)
    codes = np.pad(whole, ((0, 0), (0, blocks * block - width))).reshape(rows, blocks, block)
    table = e.constant(np.ascontiguousarray(_scale(codes, zero, scales)[:, :width]))
    return e.op("Gather", table, e.input(1, "indices"), axis=0)


def _values(e: Expansion, position: int, what: str) -> Array:
    tensor = e.input(position, what)
    if not isinstance(tensor, gs.Constant):
        raise NotImportable(f"its {what} (input {position}) are computed")
    values: Array = tensor.values
    return values


def _unpack(values: Array, bits: int, shape: tuple[int, int, int]) -> Array:
    """Numbers [rows, blocks, block] from bytes; each block begins with a new byte."""
    rows, blocks, block = shape
    codes = _bits_of(values.reshape(rows, blocks, -1), bits)
    if codes.shape[-1] < block:
        raise NotImportable(f"its weight has {codes.shape[-1]} numbers in a block of {block}")
    return codes[..., :block]


def _bits_of(values: Array, bits: int) -> Array:
    """The numbers of `bits` bits in bytes, the lowest bits first, as float32."""
    shifts = np.arange(0, _BYTE, bits, dtype=np.uint8)
    apart: Array = (values[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(*values.shape[:-1], -1).astype(np.float32)


def _scale(codes: Array, zero: Array, scale: Array) -> Array:
    """The values of numbers in blocks, float32 [rows, blocks * block]."""
    values = (codes - zero[..., None].astype(np.float32)) * scale[..., None].astype(np.float32)
    return values.reshape(len(codes), -1)
