# SPDX-License-Identifier: Apache-2.0
"""PyTorch's peers in `padfree bench`, as far as they run without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
functional = torch.nn.functional


LENGTHS = (5, 9, 1, 23)
SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}


def by_sequence(window: tuple[int, int]) -> Any:
    """Attention with a window for q, k, v [T, H, D], one sequence after the other."""

    def run(q: Any, k: Any, v: Any) -> Any:
        out, start = torch.empty_like(q), 0
        for length in LENGTHS:
            distance = torch.arange(length) - torch.arange(length)[:, None]
            left, right = (length if side < 0 else side for side in window)
            rows = (x[start : start + length].transpose(0, 1) for x in (q, k, v))
            mask = (distance >= -left) & (distance <= right)
            out[start : start + length] = functional.scaled_dot_product_attention(*rows, attn_mask=mask).transpose(0, 1)
            start += length
        return out

    return run


def models() -> dict[str, Any]:
    windowed = {"local_attention": 8, "global_attn_every_n_layers": 3, "bos_token_id": 1, "eos_token_id": 2}
    special = {"cls_token_id": 1, "sep_token_id": 2}
    result = {
        "bert": transformers.BertModel(transformers.BertConfig(**SMALL)),
        "modernbert": transformers.ModernBertModel(transformers.ModernBertConfig(**SMALL, **windowed, **special)),
    }
    if hasattr(transformers, "NomicBertModel"):
        result["nomic"] = transformers.NomicBertModel(transformers.NomicBertConfig(**SMALL))
    return result


@pytest.mark.parametrize("name", ["bert", "modernbert", "nomic"])
@pytest.mark.parametrize("attention", ["by sequence", "flex"])
def test_packed_models_are_those_of_transformers(name: str, attention: str) -> None:
    from padfree.builder.peers.packed_models import PACKED, Tokens
    from padfree.builder.peers.varlen import flex_attention

    torch.manual_seed(0)
    model = models().get(name)
    if model is None:
        pytest.skip("this transformers does not have it")
    model.eval()
    lengths = np.array(LENGTHS)
    kept = torch.from_numpy(np.arange(max(LENGTHS)) < lengths[:, None])
    ids, types = torch.randint(1, 50, kept.shape), torch.randint(0, 2, kept.shape)
    firsts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)[:-1]]))
    positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))
    typed = {} if name == "modernbert" else {"token_type_ids": types}
    attend = by_sequence if attention == "by sequence" else flex_attention(torch, LENGTHS, "cpu")
    with torch.inference_mode():
        wanted = model(input_ids=ids, attention_mask=kept.long(), **typed)
        forward = PACKED[type(model).__name__](torch, attend, model)
        result = forward(Tokens(ids[kept], types[kept], positions, firsts))
    torch.testing.assert_close(result["last_hidden_state"], wanted.last_hidden_state[kept], atol=3e-5, rtol=0)
    if name == "bert":
        torch.testing.assert_close(result["pooler_output"], wanted.pooler_output, atol=3e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert-base", "minilm", "distilbert", "albert", "deberta", "mpnet", "t5"])
def test_every_parameter_of_the_sweeps_models_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import models

    config = models.MODELS[name]()
    small = {"n_layers": 1, "dim": 48, "n_heads": 4, "hidden_dim": 64} if name == "distilbert" else {
        "num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 64,
    }  # fmt: skip
    for key, value in {**small, "vocab_size": 60, "max_position_embeddings": 32, "pooler_hidden_size": 48}.items():
        setattr(config, key, value)
    monkeypatch.setattr(models, "MODELS", {name: lambda: config})
    model = models.build(name)
    for parameter_name, parameter in model.named_parameters():
        values = parameter.detach()
        assert float(values.abs().max()) > 0, parameter_name
        assert values.numel() == 1 or float(values.std()) > 0, parameter_name
