# SPDX-License-Identifier: Apache-2.0
"""Encoders in PyTorch without padding: packed tokens, compiled, with attention that takes sequences of any lengths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from padfree.runtime import bounds_of

from .contender import Contender, UnavailableError
from .packed_models import PACKED, Attend, Forward, Tokens, Window
from .setup import Setup
from .torch_peers import answers_of, load, torch_module, ways_of


def varlen_attention(torch: Any, seq_lens: Sequence[int], device: str) -> Attend:
    """PyTorch's own. Raises UnavailableError where it has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise UnavailableError(f"this PyTorch ({torch.__version__}) has no torch.nn.attention.varlen") from error
    offsets = torch.tensor(bounds_of(seq_lens).tolist(), dtype=torch.int32, device=device)
    longest = max(seq_lens)
    shares_heads = "enable_gqa" in inspect.signature(varlen_attn).parameters  # PyTorch 2.11 has no such option

    def attend(window: Window) -> Callable[[Any, Any, Any], Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            group = q.shape[1] // k.shape[1]
            options = {"enable_gqa": True} if group > 1 and shares_heads else {}
            if group > 1 and not shares_heads:
                k, v = (heads.repeat_interleave(group, dim=1) for heads in (k, v))
            return varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=window, **options)

        return run

    return attend


def flex_attention(torch: Any, seq_lens: Sequence[int], device: str) -> Attend:
    """PyTorch's flex_attention over all tokens; a row sees those of its sequence and window."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    lengths = torch.tensor(seq_lens, device=device)
    sequence = torch.repeat_interleave(torch.arange(len(seq_lens), device=device), lengths)
    tokens = len(sequence)

    def attend(window: Window) -> Callable[[Any, Any, Any], Any]:
        left, right = (tokens if side < 0 else side for side in window)

        def visible(_: Any, __: Any, row: Any, key: Any) -> Any:
            return (sequence[row] == sequence[key]) & (key - row >= -left) & (key - row <= right)

        mask = create_block_mask(visible, None, None, tokens, tokens, device=device)

        def run(q: Any, k: Any, v: Any) -> Any:
            operands = (item.transpose(0, 1).unsqueeze(0) for item in (q, k, v))
            return flex_attention(*operands, block_mask=mask)[0].transpose(0, 1)

        return run

    return attend


def written_anew(torch: Any, attend: Attend, model: Any) -> Forward:
    """The forward pass of a known family on packed tokens. Raises UnavailableError for others."""
    family = type(model).__name__
    if family not in PACKED:
        raise UnavailableError(f"is written for {', '.join(PACKED)}; this is {family}")
    return PACKED[family](torch, attend, model)


def packed_contender(
    setup: Setup,
    attention: Callable[[Any, Sequence[int], str], Attend],
    forward_of: Callable[[Any, Attend, Any], Forward],
    *,
    tries_first: bool = False,
) -> Contender:
    """The model over packed tokens with this attention, compiled, plain and in a CUDA graph.

    `tries_first`: it runs before it is compiled, so that a model that cannot take part says why.
    """
    torch, seq_lens = torch_module(), setup.batch.seq_lens
    if setup.model.half == "fp32":
        raise UnavailableError("its attention runs fp16 and bf16, this is a comparison in fp32")
    model, tokens = load(setup), packed_tokens(torch, setup)
    forward = forward_of(torch, attention(torch, seq_lens, "cuda"), model)
    if tries_first:
        with torch.inference_mode():
            forward(tokens)
    compiled = torch.compile(forward, dynamic=False)

    def run() -> Any:
        with torch.inference_mode():
            return compiled(tokens)

    return Contender(answers_of(setup, run(), packed=True), ways_of(run))


def packed_tokens(torch: Any, setup: Setup) -> Tokens:
    """The batch's tokens on the GPU."""
    ragged, seq_lens = setup.batch.ragged, setup.batch.seq_lens
    arrays = (
        ragged.tokens["input_ids"],
        ragged.tokens.get("token_type_ids", np.zeros(setup.batch.tokens, np.int32)),
        np.concatenate([np.arange(length) for length in seq_lens]),
        bounds_of(seq_lens)[:-1],
    )
    return Tokens(*(torch.from_numpy(array.astype(np.int64)).cuda() for array in arrays))
