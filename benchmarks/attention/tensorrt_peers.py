# SPDX-License-Identifier: Apache-2.0
"""Attention by TensorRT for the attention benchmark: its own fusion, and NVIDIA's varseqlen plugin (TensorRT 10)."""

from __future__ import annotations

import numpy as np
import tensorrt as trt
import torch
from padfree.builder.peers.tensorrt_network import FixedNetwork

from .problem import DEVICE, Launch, Problem, UnsupportedError, padding, unpadding

FUSED_LIMIT = 512
"""Longest padded batch for which an engine is built: TensorRT searches tactics for every shape."""
PLUGIN_LIMIT = 384
"""The plugin's longest sequence; the next larger kernel, for 512, gives wrong numbers on Hopper."""
PLUGIN_HEAD_SIZE = 64
PLUGIN_VERSION = "2"
MASKED = -1e4


def fuse(problem: Problem) -> Launch:
    """Padded matmul, softmax and matmul, which TensorRT fuses into one kernel if it has one.

    Q, K and V are padded and transposed to [B, H, S, D] beforehand; the padding mask is added to the scores.
    """
    case = problem.case
    if case.longest > FUSED_LIMIT:
        raise UnsupportedError(f"engines are built for padded lengths up to {FUSED_LIMIT}")
    batch, longest = len(case.lengths), case.longest
    shape = (batch, case.heads, longest, case.head_size)
    builder = FixedNetwork(trt)
    network, operation = builder.network, trt.MatrixOperation
    q, k, v = (builder.input(name, shape, trt.float16) for name in "qkv")
    scores = network.add_matrix_multiply(q, operation.NONE, k, operation.TRANSPOSE).get_output(0)
    factor = np.full((1, 1, 1, 1), problem.scale, np.float16)
    scores = network.add_elementwise(scores, builder.constant(factor), trt.ElementWiseOperation.PROD).get_output(0)
    constants: dict[str, torch.Tensor] = {}
    if not case.equal_lengths:
        mask = builder.input("mask", (batch, 1, 1, longest), trt.float16)
        scores = network.add_elementwise(scores, mask, trt.ElementWiseOperation.SUM).get_output(0)
        lengths = torch.tensor(case.lengths, device=DEVICE).view(-1, 1)
        masked = torch.arange(longest, device=DEVICE) >= lengths
        constants["mask"] = (masked * MASKED).half().view(batch, 1, 1, longest)
    softmax = network.add_softmax(scores)
    softmax.axes = 1 << 3
    matmul = network.add_matrix_multiply(softmax.get_output(0), operation.NONE, v, operation.NONE)
    engine = builder.build(matmul.get_output(0), trt.float16)

    pad = padding(problem)
    inputs = [tuple(pad(operand) for operand in problem.operands(index)) for index in range(len(problem.inputs))]
    outputs = [torch.empty(shape, dtype=torch.float16, device=DEVICE) for _ in problem.inputs]

    def run(index: int) -> torch.Tensor:
        tensors = dict(zip("qkv", inputs[index], strict=True))
        engine.run({**tensors, **constants, "y": outputs[index]})
        return outputs[index]

    return Launch(run, unpadding(problem))


def varseqlen_plugin(problem: Problem) -> Launch:
    """CustomQKVToContextPluginDynamic over packed sequences; its input is put in order as [T, H, 3, D] beforehand."""
    case = problem.case
    if case.head_size != PLUGIN_HEAD_SIZE or case.longest > PLUGIN_LIMIT:
        raise UnsupportedError(f"the plugin takes heads of {PLUGIN_HEAD_SIZE} and lengths up to {PLUGIN_LIMIT}")
    width = case.heads * case.head_size
    values = {
        "type_id": int(trt.float16),
        "hidden_size": width,
        "num_heads": case.heads,
        "has_mask": 1,
        "var_seqlen": 1,
    }
    builder = FixedNetwork(trt)
    operands = [
        builder.input("qkv", (case.tokens, 3 * width, 1, 1), trt.float16),
        builder.input("unused", (1,), trt.int32),
        builder.input("cu_seqlens", (len(case.lengths) + 1,), trt.int32),
        builder.input("longest", (case.longest,), trt.int32),
    ]
    plugin = builder.plugin("CustomQKVToContextPluginDynamic", PLUGIN_VERSION, {}, values, operands)
    engine = builder.build(plugin.get_output(0), trt.float16)

    inputs = [qkv.transpose(1, 2).contiguous() for qkv in problem.inputs]
    outputs = [torch.empty(case.tokens, width, dtype=torch.float16, device=DEVICE) for _ in problem.inputs]
    constants = {
        "unused": torch.zeros(1, dtype=torch.int32, device=DEVICE),
        "cu_seqlens": problem.cu_seqlens,
        "longest": torch.zeros(case.longest, dtype=torch.int32, device=DEVICE),
    }

    def run(index: int) -> torch.Tensor:
        engine.run({**constants, "qkv": inputs[index], "y": outputs[index]})
        return outputs[index]

    return Launch(run)
