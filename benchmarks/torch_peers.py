# SPDX-License-Identifier: Apache-2.0
"""PyTorch beside the engines: truth, plain fp16, torch.compile, and the time of the matrix products alone."""

from __future__ import annotations

import torch
from models import Batch
from timing import captured, time_ms
from transformers import BertModel


def outputs(model: BertModel, batch: Batch, dtype: torch.dtype) -> list[torch.Tensor]:
    """The last_hidden_state of every sequence's valid tokens, computed padded on the GPU in the type."""
    torch.backends.cuda.matmul.allow_tf32 = False
    assert not model.training, "dropout would be part of the truth"
    model = model.to("cuda", dtype)
    with torch.inference_mode():
        result = model(
            input_ids=batch.input_ids.cuda(),
            attention_mask=batch.mask.cuda(),
            token_type_ids=batch.token_type_ids.cuda(),
        )
    hidden = result.last_hidden_state.double().cpu()
    return [row[:length] for row, length in zip(hidden, batch.lengths, strict=True)]


def compiled_ms(model: BertModel, batch: Batch) -> dict[str, float]:
    """torch.compile on the padded batch in fp16, plainly and in a CUDA graph."""
    model = model.to("cuda", torch.float16)
    compiled = torch.compile(model, dynamic=False)
    ids, mask, types = batch.input_ids.cuda(), batch.mask.cuda(), batch.token_type_ids.cuda()

    def work() -> object:
        with torch.inference_mode():
            return compiled(input_ids=ids, attention_mask=mask, token_type_ids=types)

    times = {"plain": time_ms(work)}
    try:
        times["graph"] = time_ms(captured(work))
    except RuntimeError:  # a model whose forward synchronises cannot be captured
        torch.cuda.synchronize()
    return times


def gemm_limit_ms(model: BertModel, num_tokens: int) -> float:
    """The time that cuBLAS takes for the packed matrix products of all layers alone, in a CUDA graph, fp16."""
    config = model.config
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]
    half = {"device": "cuda", "dtype": torch.float16}
    layers = [[torch.randn(*shape, **half) for shape in shapes] for _ in range(config.num_hidden_layers)]
    inputs = [torch.randn(num_tokens, shape[0], **half) for shape in shapes]
    results = [torch.empty(num_tokens, shape[1], **half) for shape in shapes]

    def work() -> None:
        for weights in layers:
            for x, weight, y in zip(inputs, weights, results, strict=True):
                torch.mm(x, weight, out=y)

    return time_ms(captured(work))
