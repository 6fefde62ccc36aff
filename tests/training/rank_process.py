# SPDX-License-Identifier: Apache-2.0
"""One of two processes of a training on the CPU, which talk through gloo; rank 0 prints what both have seen.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python tests/training/rank_process.py HOW

HOW is plain (PyTorch's DataLoader), accelerate, split (accelerate with split_batches), even (accelerate without
even_batches), twice (a rank's batches under accelerate) or trainer (that of sentence-transformers).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from padfree.training import BalancedBatchSampler, SamplerError, for_sentence_transformers

from tests.training.rows import BATCH, EPOCHS, LENGTHS, ROWS, SEED


class Rows(torch.utils.data.Dataset[int]):
    """A dataset of row numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> int:
        return row


def loader_of(how: str, rank: int) -> tuple[Any, Any]:
    """A DataLoader, and the object whose set_epoch is called."""
    sampler = BalancedBatchSampler(LENGTHS, BATCH, replicas=2, seed=SEED)
    if how == "plain":
        view = sampler.for_rank(rank)
        return torch.utils.data.DataLoader(Rows(), batch_sampler=view), view
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    batches = {"split": sampler.joined, "twice": lambda: sampler.for_rank(rank)}.get(how, lambda: sampler)()
    config = DataLoaderConfiguration(split_batches=how == "split", even_batches=how != "even")
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = accelerator.prepare(torch.utils.data.DataLoader(Rows(), batch_sampler=batches))
    return loader, loader


def epochs_of(how: str, rank: int) -> list[list[list[int]]]:
    """The rows of this process's batches, for each epoch."""
    loader, reports = loader_of(how, rank)
    results = []
    for epoch in range(EPOCHS):
        reports.set_epoch(epoch)
        results.append([batch.tolist() for batch in loader])
        assert len(loader) == len(results[-1])
    return results


def train() -> dict[str, Any]:
    """Trains a model of sentence-transformers; returns its loader's batches, its steps, and its sampler's state."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    from tests.support.folders import TOKENIZER

    torch.manual_seed(0)
    model = SentenceTransformer(modules=[StaticEmbedding(Tokenizer.from_file(str(TOKENIZER)), embedding_dim=8)])
    texts = [" ".join(["word"] * int(length)) for length in LENGTHS]
    items = []
    hook = for_sentence_transformers(LENGTHS)

    def remember(*arguments: Any, **options: Any) -> BalancedBatchSampler:
        items.append(hook(*arguments, **options))
        return items[-1]

    with tempfile.TemporaryDirectory() as folder:
        options = Arguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=EPOCHS,
            batch_sampler=remember,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        data = Dataset.from_dict({"anchor": texts, "positive": texts})
        trainer = SentenceTransformerTrainer(
            model, options, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
        )
        batches = list(trainer.get_train_dataloader().batch_sampler)
        steps = trainer.train().global_step
    return {"batches": batches, "steps": steps, "epoch": items[-1].epoch, "replicas": items[-1].replicas}


def main(how: str) -> None:
    """Runs one of the ways, and lets rank 0 print what all ranks have seen, in the order of ranks."""
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    try:
        seen: Any = train() if how == "trainer" else epochs_of(how, rank)
    except SamplerError as error:
        seen = {"error": str(error)}
    everybody: list[Any] = [None, None]
    dist.all_gather_object(everybody, seen)
    if rank == 0:
        sys.stdout.write(json.dumps(everybody) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
