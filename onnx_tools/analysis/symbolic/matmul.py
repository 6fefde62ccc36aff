# SPDX-License-Identifier: Apache-2.0
"""The sizes of the results of GEMMs, convolutions and standard attention."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from .facts import Facts, InputFacts, Shape, are_constant, broadcast_shape
from .poly import Poly


def matmul(_: gs.Node, input_facts: InputFacts) -> Facts:
    """[..., M, K] by [..., K, N]."""
    shape = matmul_shape(input_facts[0].shape, input_facts[1].shape)
    return Facts(shape, input_facts[0].dtype, constant=input_facts[0].constant and input_facts[1].constant)


def conv(node: gs.Node, input_facts: InputFacts) -> Facts:
    """[batch, channels, ...]: padding lengthens the axes and the kernel shortens them; only strides of 1 are known."""
    x, kernel = input_facts[0].shape, input_facts[1].static_shape()
    if x is None or kernel is None or any(step != 1 for step in node.attrs.get("strides", [1])):
        return Facts(dtype=input_facts[0].dtype)
    axes = len(kernel) - 2
    steps = node.attrs.get("dilations", [1] * axes)
    pads = node.attrs.get("pads", [0] * (2 * axes))
    reach = [int(step) * (size - 1) for step, size in zip(steps, kernel[2:], strict=True)]
    if str(node.attrs.get("auto_pad", "NOTSET")).startswith("SAME"):
        pads = [*reach, *([0] * axes)]
    sizes = [x[axis + 2] + (int(pads[axis]) + int(pads[axis + axes]) - reach[axis]) for axis in range(axes)]
    return Facts((x[0], Poly.of(kernel[0]), *sizes), input_facts[0].dtype)


def attention(node: gs.Node, input_facts: InputFacts) -> Facts:
    """The result of Attention: the shape of the queries, with heads as wide as those of the values."""
    q, v = input_facts[0].shape, input_facts[2].shape
    if q is None or v is None:
        return Facts(dtype=input_facts[0].dtype)
    width = v[-1]
    if len(q) == 3:
        size = v[-1].divided_exactly(Poly.of(int(node.attrs.get("kv_num_heads", 1))))
        if size is None:
            return Facts(dtype=input_facts[0].dtype)
        width = size * int(node.attrs.get("q_num_heads", 1))
    return Facts((*q[:-1], width), input_facts[0].dtype)


def gemm(node: gs.Node, input_facts: InputFacts) -> Facts:
    """[M, K] by [K, N], either of them transposed."""
    a, b = input_facts[0].shape, input_facts[1].shape
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return Facts(dtype=input_facts[0].dtype)
    rows, columns = a[1 if node.attrs.get("transA", 0) else 0], b[0 if node.attrs.get("transB", 0) else 1]
    return Facts((rows, columns), input_facts[0].dtype, constant=are_constant(input_facts))


def matmul_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of MatMul's result; vectors lose the axis that is summed over."""
    if not a or not b:
        return None
    batch = broadcast_shape([a[:-2], b[:-2]])
    return None if batch is None else (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))
