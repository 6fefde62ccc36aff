# SPDX-License-Identifier: Apache-2.0
"""Any model of transformers gives the same for packed tokens as for a padded batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from padfree.builder.peers.any_model import packed_forward  # noqa: E402
from padfree.builder.peers.contender import UnavailableError  # noqa: E402
from padfree.builder.peers.packed_models import Tokens, Window  # noqa: E402

pytestmark = pytest.mark.needs_torch

LENGTHS = (5, 9, 1, 23)
SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 12}
WINDOWED = {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}
GEMMA = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "query_pre_attn_scalar": 7}
MODELS = {
    "bert": ("Bert", SMALL),
    "roberta": ("Roberta", {**SMALL, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRoberta", {**SMALL, "pad_token_id": 1}),
    "electra": ("Electra", {**SMALL, "embedding_size": 16}),
    "modernbert": ("ModernBert", {**SMALL, **WINDOWED, "bos_token_id": 1, "eos_token_id": 2}),
    "qwen3": ("Qwen3", DECODER),
    "llama": ("Llama", DECODER),
    "gemma3": ("Gemma3Text", {**DECODER, **GEMMA}),
    "embeddinggemma": ("Gemma3Text", {**DECODER, **GEMMA, "use_bidirectional_attention": True}),
}


def by_sequence(window: Window) -> Any:
    """Attention for q, k, v [T, H, D], one sequence after the other; heads of keys and values are repeated."""

    def run(q: Any, k: Any, v: Any) -> Any:
        k, v = (item.repeat_interleave(q.shape[1] // k.shape[1], 1) for item in (k, v))
        parts = []
        for rows in zip(*(torch.split(item, LENGTHS) for item in (q, k, v)), strict=True):
            length = len(rows[0])
            distance = torch.arange(length) - torch.arange(length)[:, None]
            left, right = (length if side < 0 else side for side in window)
            mask = (distance >= -left) & (distance <= right)
            heads = (item.transpose(0, 1) for item in rows)
            parts.append(torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(0, 1))
        return torch.cat(parts)

    return run


def model_of(family: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**options)
    return getattr(transformers, f"{family}Model")(config).eval()


def batch(lowest: int) -> tuple[Any, Any, Tokens]:
    """Padded ids and mask, and the same tokens packed."""
    lengths = np.array(LENGTHS)
    kept = torch.from_numpy(np.arange(max(LENGTHS)) < lengths[:, None])
    ids = torch.where(kept, torch.randint(3, 50, kept.shape), lowest)
    firsts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]]))
    positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))
    return ids, kept, Tokens(ids[kept], torch.zeros_like(ids[kept]), positions, firsts)


@pytest.mark.parametrize("name", MODELS)
def test_packed_tokens_give_what_padded_ones_do(name: str) -> None:
    family, options = MODELS[name]
    model = model_of(family, options)
    ids, kept, tokens = batch(options["pad_token_id"])
    with torch.inference_mode():
        wanted = model(input_ids=ids, attention_mask=kept.long())
        result = packed_forward(torch, by_sequence, model)(tokens)
    torch.testing.assert_close(result["last_hidden_state"], wanted.last_hidden_state[kept], atol=3e-5, rtol=1e-4)
    if wanted.get("pooler_output") is not None:
        torch.testing.assert_close(result["pooler_output"], wanted.pooler_output, atol=3e-5, rtol=1e-4)


def test_models_with_biases_say_why_they_take_no_part() -> None:
    """T5 adds a bias by distance; without it the answers would be wrong."""
    config = transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    model = transformers.T5EncoderModel(config).eval()
    _, _, tokens = batch(0)
    with pytest.raises(UnavailableError, match=r"position_ids|bias|itself|by name"), torch.inference_mode():
        packed_forward(torch, by_sequence, model)(tokens)
