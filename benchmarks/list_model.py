# SPDX-License-Identifier: Apache-2.0
"""A small BERT with two heads for nested list operations, and its training."""

from __future__ import annotations

from collections.abc import Sequence

import list_operations as task
import numpy as np
import torch
import transformers

MAX_LENGTH = 128
TRAIN_BATCH, LEARNING_RATE, WARM_UP_STEPS = 256, 6e-4, 200
OUTLIER_CHANNELS, OUTLIER_WEIGHT, OUTLIER_BIAS, INNER_GAIN = (7, 40), 6.0, 10.0, 40.0
NO_TAG = -100  # what cross_entropy leaves out
INPUTS, OUTPUTS = ("input_ids", "attention_mask"), ("answer", "depths")


class Model(torch.nn.Module):
    """A BERT with a head for the answer [B, 10] and one for the depth of every token [B, S, 5]."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=task.VOCAB_SIZE, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden, max_position_embeddings=MAX_LENGTH, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.encoder = transformers.BertModel(config, add_pooling_layer=False)
        self.answer = torch.nn.Linear(hidden, task.ANSWERS)
        self.depths = torch.nn.Linear(hidden, task.DEPTHS)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of both heads."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.answer(hidden[:, 0]), self.depths(hidden)

    def add_outliers(self) -> None:
        """Two channels of every norm, and the inner activations of one layer, far larger than the rest."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "LayerNorm.weight" in name:
                    parameter[list(OUTLIER_CHANNELS)] = OUTLIER_WEIGHT
                elif "LayerNorm.bias" in name:
                    parameter[list(OUTLIER_CHANNELS)] = torch.tensor([OUTLIER_BIAS, -OUTLIER_BIAS])
            layer = self.encoder.encoder.layer[-2]
            layer.intermediate.dense.weight.mul_(INNER_GAIN)
            layer.output.dense.weight.div_(INNER_GAIN)


def padded(examples: Sequence[task.Example], device: str) -> tuple[torch.Tensor, ...]:
    """ids and mask [B, S], answers [B], depths [B, S] with NO_TAG at padding."""
    width = max(len(item.ids) for item in examples)
    ids, mask = np.zeros((len(examples), width), np.int64), np.zeros((len(examples), width), np.int64)
    depths = np.full((len(examples), width), NO_TAG, np.int64)
    for row, item in enumerate(examples):
        ids[row, : len(item.ids)], mask[row, : len(item.ids)] = item.ids, 1
        depths[row, : len(item.ids)] = item.depths
    answers = np.asarray([item.answer for item in examples])
    return tuple(torch.from_numpy(array).to(device) for array in (ids, mask, answers, depths))


def train(model: Model, examples: Sequence[task.Example], steps: int, device: str, seed: int) -> None:
    """AdamW with warm-up and a linear fall; fp32 weights, bf16 products on a GPU."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)

    def share(step: int) -> float:
        return min((step + 1) / WARM_UP_STEPS, max(0.0, (steps - step) / steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    rng = np.random.default_rng(seed)
    model.train()
    for step in range(steps):
        chosen = [examples[int(at)] for at in rng.integers(len(examples), size=TRAIN_BATCH)]
        ids, mask, answers, depths = padded(chosen, device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            answer_logits, depth_logits = model(ids, mask)
        loss = torch.nn.functional.cross_entropy(answer_logits.float(), answers)
        loss = loss + torch.nn.functional.cross_entropy(depth_logits.float().transpose(1, 2), depths)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)
    model.eval()


def export(model: Model, path: str) -> None:
    """Writes an exported file as torch's TorchScript exporter does by default: dynamic batch and sequence axes."""
    grid = torch.ones(2, 16, dtype=torch.long)
    axes = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        model.cpu(),
        (grid, grid),
        path,
        input_names=list(INPUTS),
        output_names=list(OUTPUTS),
        dynamic_axes={"answer": {0: "batch"}, **dict.fromkeys((*INPUTS, "depths"), axes)},
        opset_version=17,
        dynamo=False,
    )
