# SPDX-License-Identifier: Apache-2.0
"""Attention over packed sequences, by PadfreeAttention and every peer of the benchmark, with one interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.support.launchers import attention, make_tasks  # the only way from Python to the CUDA launchers

from .cases import CUDNN, FA2
from .problem import DEVICE, Launch, Prepare, Problem, UnsupportedError, padding, unpadding

MAX_SCORE_BYTES = 16 * 2**30
"""A padded batch whose scores take more than this is left out."""
NUM_GROUPS = 4


def ours(problem: Problem) -> Launch:
    """PadfreeAttention's launcher, as the plugin calls it after a build with this case's longest sequence."""
    case = problem.case
    width = case.heads * case.head_size
    outputs = [torch.empty(case.tokens, width, dtype=torch.float16, device=DEVICE) for _ in problem.inputs]
    is_causal = case.positions.window[1] == 0
    # Made once for all layers of a network.
    tasks = make_tasks(problem.cu_seqlens, case.tokens, case.heads, causal=is_causal)
    positions = problem.positions

    def run(index: int) -> torch.Tensor:
        attention(
            problem.operands(index),
            problem.cu_seqlens,
            outputs[index],
            scale=problem.scale,
            max_seq_len=case.longest,
            kernel=case.kernel,
            tasks=tasks,
            positions=positions,
        )
        return outputs[index]

    return Launch(run)


def fa2_varlen(problem: Problem) -> Launch:
    """PyTorch's varlen attention, which is FlashAttention-2."""
    from torch.nn.attention.varlen import varlen_attn

    longest, offsets = problem.case.longest, problem.cu_seqlens
    return Launch(lambda index: varlen_attn(*problem.operands(index), offsets, offsets, longest, longest))


def cudnn_equal(problem: Problem) -> Launch:
    """CuDNN's attention through scaled_dot_product_attention: sequences of one length only."""
    case = problem.case
    if not case.equal_lengths:
        raise UnsupportedError("lengths differ")
    shape = (len(case.lengths), case.longest, case.heads, case.head_size)

    def run(index: int) -> torch.Tensor:
        q, k, v = (operand.view(shape).transpose(1, 2) for operand in problem.operands(index))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, scale=problem.scale)

    return Launch(run, lambda output: output.transpose(1, 2).reshape(case.tokens, -1))


def cudnn_ragged(problem: Problem) -> Launch:
    """CuDNN's attention over packed sequences (ragged offsets), through nvidia-cudnn-frontend."""
    import cudnn

    case = problem.case
    batch, heads, longest, size = len(case.lengths), case.heads, case.longest, case.head_size
    half, int32 = cudnn.data_type.HALF, cudnn.data_type.INT32
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        io_data_type=half,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )

    def integers(name: str, count: int) -> Any:
        return graph.tensor(name=name, dim=[count, 1, 1, 1], stride=[1, 1, 1, 1], data_type=int32)

    def strides(token_stride: int) -> list[int]:
        return [longest * token_stride, size, token_stride, 1]

    token_stride = 3 * heads * size
    starts, output_starts = integers("starts", batch + 1), integers("output_starts", batch + 1)
    lengths = integers("lengths", batch)
    q, k, v = (
        graph.tensor(
            name=name,
            dim=[batch, heads, longest, size],
            stride=strides(token_stride),
            data_type=half,
            ragged_offset=starts,
        )
        for name in "qkv"
    )
    output, _ = graph.sdpa(
        name="attention",
        q=q,
        k=k,
        v=v,
        attn_scale=problem.scale,
        generate_stats=False,
        use_padding_mask=True,
        seq_len_q=lengths,
        seq_len_kv=lengths,
    )
    output.set_output(True).set_dim([batch, heads, longest, size]).set_stride(strides(heads * size))
    output.set_data_type(half).set_ragged_offset(output_starts)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()

    constants = {
        starts: (problem.cu_seqlens * token_stride).view(-1, 1, 1, 1),
        output_starts: (problem.cu_seqlens * heads * size).view(-1, 1, 1, 1),
        lengths: problem.cu_seqlens.diff().view(-1, 1, 1, 1),
    }
    outputs = [torch.empty(case.tokens, heads, size, dtype=torch.float16, device=DEVICE) for _ in problem.inputs]
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=DEVICE)

    def run(index: int) -> torch.Tensor:
        cudnn.set_stream(handle, torch.cuda.current_stream().cuda_stream)
        tensors = dict(zip((q, k, v), problem.operands(index), strict=True))
        graph.execute({**tensors, **constants, output: outputs[index]}, workspace, handle)
        return outputs[index]

    return Launch(run)


def flash_attention_4(problem: Problem) -> Launch:
    """The CuTe DSL forward of flash-attn-4, compiled on its first call; it decides whether to split the keys."""
    from flash_attn.cute import flash_attn_varlen_func

    longest, offsets = problem.case.longest, problem.cu_seqlens

    def run(index: int) -> torch.Tensor:
        result = flash_attn_varlen_func(
            *problem.operands(index),
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            softmax_scale=problem.scale,
            num_splits=0,
        )
        return result[0] if isinstance(result, tuple) else result

    return Launch(run)


def flashinfer_ragged(problem: Problem) -> Launch:
    """flashinfer's ragged prefill with its Hopper backend; planning is outside of the timed part."""
    import flashinfer

    case = problem.case
    workspace = torch.empty(256 * 2**20, dtype=torch.uint8, device=DEVICE)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="fa3")
    wrapper.plan(
        problem.cu_seqlens,
        problem.cu_seqlens,
        case.heads,
        case.heads,
        case.head_size,
        causal=False,
        sm_scale=problem.scale,
        q_data_type=torch.float16,
    )
    return Launch(lambda index: wrapper.run(*problem.operands(index)))


def grouped_streams(problem: Problem) -> Launch:
    """One launch per group of similar lengths, each on its own stream (the grouped FMHA of the unpadded-BERT paper).

    Sequences are in the order of their groups beforehand; each group runs FlashAttention-2's varlen kernel.
    """
    from torch.nn.attention.varlen import varlen_attn

    case = problem.case
    step = -(-case.longest // NUM_GROUPS)
    group_of = [(length - 1) // step for length in case.lengths]
    order = sorted(range(len(case.lengths)), key=lambda sequence: group_of[sequence])
    starts = problem.cu_seqlens.tolist()
    tokens = torch.cat([torch.arange(starts[s], starts[s + 1], device=DEVICE) for s in order])
    inputs = [qkv[tokens] for qkv in problem.inputs]
    groups: list[tuple[slice, torch.Tensor, int]] = []
    start = 0
    for group in sorted(set(group_of)):
        lengths = [case.lengths[sequence] for sequence in order if group_of[sequence] == group]
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(DEVICE, torch.int32)
        groups.append((slice(start, start + sum(lengths)), offsets, max(lengths)))
        start += sum(lengths)
    if len(groups) == 1:
        raise UnsupportedError("all lengths fall into one group")
    streams = [torch.cuda.Stream() for _ in groups]

    def run(index: int) -> torch.Tensor:
        main = torch.cuda.current_stream()
        parts = []
        for stream, (part, offsets, longest) in zip(streams, groups, strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                q, k, v = inputs[index][part].unbind(1)
                parts.append(varlen_attn(q, k, v, offsets, offsets, longest, longest))
        for stream in streams:
            main.wait_stream(stream)
        results[index] = parts  # memory of one stream must not return to its pool while another may still use it
        return parts[0]

    results: dict[int, list[torch.Tensor]] = {}

    def pack(_: torch.Tensor) -> torch.Tensor:
        grouped = torch.cat(results[0]).flatten(1)
        return torch.empty_like(grouped).index_copy_(0, tokens, grouped)

    return Launch(run, pack)


def padded_matmul(problem: Problem) -> Launch:
    """Plain matmul, softmax, matmul over Q, K and V [B, H, S, D], padded and transposed beforehand."""
    case = problem.case
    batch, longest = len(case.lengths), case.longest
    score_bytes = batch * case.heads * longest * longest * 2
    if score_bytes > MAX_SCORE_BYTES:
        raise UnsupportedError(f"padded scores would take {score_bytes / 2**30:.0f} GiB")
    pad = padding(problem)
    inputs = [[pad(operand).flatten(0, 1) for operand in problem.operands(i)] for i in range(len(problem.inputs))]
    lengths = torch.tensor(case.lengths, device=DEVICE)
    masked = torch.arange(longest, device=DEVICE) >= lengths.view(-1, 1)
    mask = torch.zeros(batch, 1, 1, longest, dtype=torch.float16, device=DEVICE)
    mask.masked_fill_(masked.view(batch, 1, 1, longest), -1e4)
    mask = mask.expand(-1, case.heads, -1, -1).reshape(batch * case.heads, 1, longest)

    def run(index: int) -> torch.Tensor:
        q, k, v = inputs[index]
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=problem.scale)
        return torch.bmm(scores.softmax(-1), v).view(batch, case.heads, longest, case.head_size)

    return Launch(run, unpadding(problem))


def tensorrt_fused(problem: Problem) -> Launch:
    """TensorRT's own fused attention, over padded inputs."""
    from . import tensorrt_peers

    return tensorrt_peers.fuse(problem)


def tensorrt_varseqlen(problem: Problem) -> Launch:
    """NVIDIA's CustomQKVToContext plugin in its varseqlen form."""
    from . import tensorrt_peers

    return tensorrt_peers.varseqlen_plugin(problem)


PEERS: Mapping[str, Prepare] = {
    FA2: fa2_varlen,
    CUDNN: cudnn_equal,
    "grouped streams, FA2": grouped_streams,
    "padded matmul": padded_matmul,
    "cuDNN ragged": cudnn_ragged,
    "flashinfer": flashinfer_ragged,
    "flash-attn-4": flash_attention_4,
    "TensorRT fused, padded": tensorrt_fused,
    "TensorRT varseqlen plugin": tensorrt_varseqlen,
}
"""All peers by name, those that come with PyTorch first."""
