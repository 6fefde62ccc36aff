# SPDX-License-Identifier: Apache-2.0
"""Trains a small sentence encoder whose norms stand ahead of its layers, for measurements of such models.

    python -m benchmarks.accuracy.pre_norm all-MiniLM-L6-v2/ -o pre_norm/

A ModernBERT of a few layers learns the vectors that a published encoder gives texts (the mean over tokens, normalised),
and takes its tokenizer and its word embeddings. The texts are documentation strings of installed packages, none of
those that benchmarks/accuracy/fp8.py scores. The result is a folder as sentence-transformers writes them. On one core
of a CPU it takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn import functional

from .model import Embedder, embedding_model, grid
from .pretrained_models import tokenize
from .texts import documentation_of

PACKAGES = ("numpy", "datasets", "sentence_transformers")
LAYERS, HEADS, INTERMEDIATE = 4, 6, 512
LEARNT_TOKENS, LONGEST = 48, 128
"""Tokens of a text in training, and in use."""
BATCH, RATE, WARM_UP_STEPS, CLIPPED_NORM, SHOWN_EVERY = 32, 1e-3, 30, 1.0, 20
COPIED = ("tokenizer.json", "tokenizer_config.json", "1_Pooling", "config_sentence_transformers.json")


def student(table: torch.Tensor) -> Embedder:
    """An encoder with these word embeddings [V, E], which stay as they are."""
    config = transformers.ModernBertConfig(
        vocab_size=len(table), hidden_size=table.shape[1], num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INTERMEDIATE, max_position_embeddings=LONGEST, local_attention=LONGEST, pad_token_id=0,
        bos_token_id=101, eos_token_id=102, cls_token_id=101, sep_token_id=102, attn_implementation="eager",
    )  # fmt: skip
    encoder = transformers.ModernBertModel(config)
    held = encoder.get_input_embeddings().weight
    held.data.copy_(table)
    held.requires_grad_(False)
    return Embedder(encoder)


def train(model: Embedder, teacher: Embedder, rows: Sequence[np.ndarray], steps: int) -> None:
    """Trains with AdamW on one minus the cosine to the teacher's vectors, with warm-up and a linear decay."""
    learnt = [item for item in model.parameters() if item.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=RATE, weight_decay=0.01)
    rng, start = np.random.default_rng(0), time.perf_counter()
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP_STEPS, (steps - step) / steps)
        ids, mask = grid([rows[at] for at in rng.integers(0, len(rows), BATCH)])
        with torch.no_grad():
            wanted = teacher(ids, mask)
        loss = 1 - functional.cosine_similarity(model(ids, mask), wanted).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, CLIPPED_NORM)
        optimizer.step()
        if step % SHOWN_EVERY == 0 or step == steps - 1:
            print(f"step {step}, loss {loss.item():.4f}, {time.perf_counter() - start:.0f} s", flush=True)
    model.eval()


def save(model: Embedder, teacher: Path, folder: Path) -> None:
    """Writes the folder, with the teacher's tokenizer and pooling."""
    model.encoder.save_pretrained(folder)
    for name in COPIED:
        source = teacher / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder / name)
    shutil.copy(teacher / "modules.json", folder / "modules.json")
    settings = {"max_seq_length": LONGEST, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings), "utf-8")


def main() -> int:
    """Trains and writes."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.pre_norm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("teacher", type=Path, help="folder of a published encoder")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the trained one")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    teacher = embedding_model(arguments.teacher)
    texts = [text for package in PACKAGES for text in documentation_of(package)]
    rows = tokenize(arguments.teacher / "tokenizer.json", texts, LEARNT_TOKENS)
    print(f"{len(rows)} texts", flush=True)
    model = student(teacher.encoder.get_input_embeddings().weight.detach())
    train(model, teacher, rows, arguments.steps)
    save(model, arguments.teacher, arguments.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
