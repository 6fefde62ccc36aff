# SPDX-License-Identifier: Apache-2.0
"""Hugging Face models with fixed seeds whose every parameter matters, and ragged batches for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

VOCAB_SIZE = 30522
SCORE_GAIN = 3.5
"""Query and key weights are this much wider than Hugging Face draws them: attention scores then spread (standard
deviation above 3), so that a wrong scale or mask cannot hide in a nearly uniform softmax."""


@dataclass(frozen=True)
class Batch:
    """A ragged batch, padded: ids and token types [B, S] int64 (padding holds random ids), lengths [B]."""

    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    lengths: list[int]

    @property
    def mask(self) -> torch.Tensor:
        """The prefix mask [B, S] int64."""
        slots = torch.arange(self.input_ids.shape[1])
        return (slots < torch.tensor(self.lengths).unsqueeze(1)).long()

    @property
    def num_tokens(self) -> int:
        """T, the sum of the lengths."""
        return sum(self.lengths)

    def sequences(self, tensor: torch.Tensor) -> list[np.ndarray]:
        """The valid part of every row."""
        return [row[:length].numpy() for row, length in zip(tensor, self.lengths, strict=True)]


def bert(layers: int = 12, hidden: int = 768, heads: int = 12, seed: int = 0) -> BertModel:
    """A BertModel in fp32 on the CPU, eval mode; biases, norms and token types are as random as the weights."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    model = BertModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias") or "embeddings" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
            elif name.endswith(("query.weight", "key.weight")):
                parameter.mul_(SCORE_GAIN * (768 / hidden) ** 0.5)
    return model


def ragged_batch(batch: int, seq_len: int, seed: int = 0) -> Batch:
    """Lengths uniform in [0.2 S, S]."""
    generator = torch.Generator().manual_seed(seed)
    low = max(1, round(0.2 * seq_len))
    lengths = torch.randint(low, seq_len + 1, (batch,), generator=generator).tolist()
    ids = torch.randint(1, VOCAB_SIZE, (batch, seq_len), generator=generator)
    types = torch.randint(0, 2, (batch, seq_len), generator=generator)
    return Batch(ids, types, lengths)


class Exported(torch.nn.Module):
    """A BertModel that takes and returns tensors by position, as the tracing exporter needs."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model
        self.eval()  # the exporter puts every submodule back into the mode of the outermost

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns last_hidden_state [B, S, E] and pooler_output [B, E]."""
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return result.last_hidden_state, result.pooler_output


def export(model: BertModel, path: Path) -> None:
    """Writes the model as torch's TorchScript exporter does by default: dynamic batch and sequence axes."""
    batch = ragged_batch(2, 16)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        Exported(model),
        (batch.input_ids, batch.mask, batch.token_type_ids),
        str(path),
        input_names=names,
        output_names=["last_hidden_state", "pooler_output"],
        dynamic_axes={**dict.fromkeys([*names, "last_hidden_state"], axes), "pooler_output": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
