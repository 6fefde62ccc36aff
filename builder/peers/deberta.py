# SPDX-License-Identifier: Apache-2.0
"""DeBERTa v2 and v3 with the attention kernels of PyPI's flashdeberta and disentangled-flash."""

from __future__ import annotations

from typing import Any

import numpy as np
from padfree.runtime import bounds_of

from .contender import Contender, UnavailableError
from .setup import Setup
from .torch_peers import answers_of, load, padded_run, torch_module, ways_of
from .varlen import packed_tokens


def flashdeberta(setup: Setup) -> Contender:
    """The padded model as flashdeberta has it; every layer waits for the GPU, which rules out a CUDA graph."""
    model = _deberta(setup)
    try:
        from flashdeberta import FlashDebertaV2Model
    except ImportError as error:
        raise UnavailableError(f"flashdeberta cannot be imported ({error}); install flashdeberta") from error
    theirs = FlashDebertaV2Model.from_pretrained(setup.model.torch_folder).to("cuda", model.dtype).eval()
    run = padded_run(setup, theirs)
    return Contender(answers_of(setup, run()), ways_of(run, graph=False))


def disentangled_flash(setup: Setup) -> Contender:
    """The encoder over packed tokens as disentangled-flash has it, compiled but for attention, in a CUDA graph too."""
    torch, seq_lens = torch_module(), setup.batch.seq_lens
    model = _deberta(setup)
    try:
        from disentangled_flash import PackedSequenceInfo, optimize_deberta
    except ImportError as error:
        raise UnavailableError(f"disentangled-flash cannot be imported ({error}); install it") from error
    offsets = bounds_of(seq_lens).tolist()
    cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device="cuda")
    info = PackedSequenceInfo(tuple(offsets), tuple(seq_lens), max(seq_lens))
    encoder = optimize_deberta(model, sequence_lengths=max(seq_lens)).encoder
    ids = packed_tokens(torch, setup).ids[None]
    mask = torch.ones_like(ids)

    @torch.compile(dynamic=False)  # type: ignore[untyped-decorator]
    def apply_rest(layer: Any, attended: Any, x: Any) -> Any:
        residual = layer.attention.output(attended, x)
        return layer.output(layer.intermediate(residual), residual)

    def run() -> Any:
        with torch.inference_mode():
            x = model.embeddings(input_ids=ids, mask=mask)[0]
            positions = encoder.get_rel_embedding()
            for layer in encoder.layer:
                attended, _ = layer.attention.self.forward_packed(
                    x, cu_seqlens, info.max_seqlen, rel_embeddings=positions, packed_info=info
                )
                x = apply_rest(layer, attended, x)
            return x

    hidden = run().float().cpu().numpy()
    return Contender({"last_hidden_state": list(np.split(hidden, offsets[1:-1]))}, ways_of(run))


def _deberta(setup: Setup) -> Any:
    """The transformers model. Raises UnavailableError for another family and for fp32."""
    if setup.model.half == "fp32":
        raise UnavailableError("its attention is compared in fp16 and bf16 alone")
    model = load(setup)
    if type(model).__name__ != "DebertaV2Model":
        raise UnavailableError(f"is written for DebertaV2Model; this is {type(model).__name__}")
    return model
