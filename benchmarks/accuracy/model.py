# SPDX-License-Identifier: Apache-2.0
"""A small BERT with a head for each of three tasks: classification, tagging, retrieval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from . import list_operations as lists
from . import retrieval

MAX_LENGTH = 128
INPUTS, OUTPUTS = ("input_ids", "attention_mask"), ("answer", "depths", "embedding")
BY_TOKEN = (*INPUTS, "depths")


class Model(torch.nn.Module):  # type: ignore[misc]
    """A BERT with heads for a list's value [B, 10], every token's depth [B, S, 5] and embeddings [B, E]."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=retrieval.VOCAB_SIZE, hidden_size=hidden, num_hidden_layers=layers,
            num_attention_heads=hidden // 64, intermediate_size=4 * hidden, max_position_embeddings=MAX_LENGTH,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.encoder = transformers.BertModel(config, add_pooling_layer=False)
        self.answer = torch.nn.Linear(hidden, lists.ANSWERS)
        self.depths = torch.nn.Linear(hidden, lists.DEPTHS)
        self.embedding = torch.nn.Linear(hidden, hidden)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All three heads' outputs; the mask is [B, S]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.answer(hidden[:, 0]), self.depths(hidden), self.embed(hidden, attention_mask)

    def embed(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Normalised embeddings of hidden states [B, S, E]: the mean over tokens, projected."""
        return torch.nn.functional.normalize(self.embedding(mean_of_tokens(hidden, mask)), dim=1)

    def largest_norm_parameter(self) -> float:
        """The largest weight or bias of all norms."""
        named = self.named_parameters()
        return max(float(parameter.detach().abs().max()) for name, parameter in named if "LayerNorm" in name)


class Embedder(torch.nn.Module):  # type: ignore[misc]
    """An encoder of transformers whose normalised embedding is the mean over tokens."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings [B, E]; the mask is [B, S]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return torch.nn.functional.normalize(mean_of_tokens(hidden, attention_mask), dim=1)


def embedding_model(folder: Path) -> Embedder:
    """The encoder in a folder of sentence-transformers, in fp32 on the CPU. Raises ValueError for another pooling."""
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text("utf-8"))
    modes = [name for name, chosen in pooling.items() if name.startswith("pooling_mode") and chosen is True]
    if modes != ["pooling_mode_mean_tokens"]:
        raise ValueError(f"{folder}: its pooling is not the mean over tokens alone, which this benchmark takes")
    embedder = Embedder(transformers.AutoModel.from_pretrained(folder, dtype=torch.float32))
    embedder.eval()
    return embedder


def mean_of_tokens(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean [B, E] of hidden states [B, S, E] over the tokens that the mask [B, S] keeps."""
    kept = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)


def grid(rows: Sequence[np.ndarray], width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [B, S] of sequences; S is the longest one's length or `width`."""
    width = width or max(len(row) for row in rows)
    ids, mask = (np.zeros((len(rows), width), np.int64) for _ in range(2))
    for at, row in enumerate(rows):
        ids[at, : len(row)], mask[at, : len(row)] = row, 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def export(model: torch.nn.Module, path: str, outputs: Sequence[str] = OUTPUTS) -> None:
    """Writes an exported file as torch's TorchScript exporter does by default: dynamic batch and sequence axes."""
    sample = torch.ones(2, 16, dtype=torch.long)
    axes = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        model.cpu(),
        (sample, sample),
        path,
        input_names=list(INPUTS),
        output_names=list(outputs),
        dynamic_axes={name: axes if name in BY_TOKEN else {0: "batch"} for name in (*INPUTS, *outputs)},
        opset_version=17,
        dynamo=False,
    )
