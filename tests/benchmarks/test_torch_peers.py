# SPDX-License-Identifier: Apache-2.0
"""PyTorch's peers of `padfree bench`, as far as they run without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def attention_by_sequence(q: Any, k: Any, v: Any, starts: Any, _starts: Any, _longest: int, _same: int) -> Any:
    """What variable-length attention computes, one sequence after the other: q, k, v [T,H,D]."""
    out = torch.empty_like(q)
    for start, stop in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        rows = (x[start:stop].transpose(0, 1) for x in (q, k, v))
        out[start:stop] = torch.nn.functional.scaled_dot_product_attention(*rows).transpose(0, 1)
    return out


def test_bert_on_packed_tokens_is_bert() -> None:
    from padfree.builder.peers.varlen import packed_bert

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    model = transformers.BertModel(config).eval()
    lengths = np.array([5, 9, 1])
    kept = torch.from_numpy(np.arange(9) < lengths[:, None])
    ids, types = torch.randint(1, 50, kept.shape), torch.randint(0, 2, kept.shape)
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))
    with torch.inference_mode():
        wanted = model(input_ids=ids, token_type_ids=types, attention_mask=kept.long())
        forward = packed_bert(torch, attention_by_sequence, model)
        hidden, pooled = forward(ids[kept], types[kept], positions, starts[:-1], starts, 9)
    torch.testing.assert_close(hidden, wanted.last_hidden_state[kept], atol=2e-5, rtol=0)
    torch.testing.assert_close(pooled, wanted.pooler_output, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert-base", "minilm", "distilbert", "albert", "deberta"])
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
