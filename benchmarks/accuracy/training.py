# SPDX-License-Identifier: Apache-2.0
"""Trains the BERT of model.py on all its tasks at once; on a GPU a step is a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional

from .list_operations import Example
from .model import MAX_LENGTH, Model, grid
from .retrieval import LONGEST_QUERY, Pair

LISTS, PAIRS = 256, 64  # examples per step
WIDTHS = (32, 64, MAX_LENGTH)  # the lists of a step are padded to one of these
LEARNING_RATE, WARM_UP_STEPS, CLIPPED_NORM, TEMPERATURE = 6e-4, 200, 1.0, 0.05
NO_TAG = -100  # the label that cross_entropy ignores
GRAPH_WARM_UPS = 3  # steps before a capture: libraries and the optimiser allocate their memory during these
SHOWN_EVERY = 500

Tensors = tuple[torch.Tensor, ...]


class Step:
    """One training step on inputs of fixed shapes; a CUDA graph of it on a GPU.

    A step of this model has about a thousand small kernels, which take longer to launch one by one than to run.
    """

    def __init__(self, update: Callable[..., torch.Tensor], inputs: Tensors, *, graph: bool) -> None:
        self._update = update
        self._inputs = tuple(item.clone() for item in inputs)
        self._graph = torch.cuda.CUDAGraph() if graph else None
        self._loss = inputs[0]
        if self._graph is not None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(GRAPH_WARM_UPS):
                    update(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self._graph):
                self._loss = update(*self._inputs)

    def __call__(self, inputs: Tensors) -> torch.Tensor:
        """Updates the weights; returns the loss, which the next call overwrites."""
        if self._graph is None:
            return self._update(*inputs)
        for own, values in zip(self._inputs, inputs, strict=True):
            own.copy_(values)
        self._graph.replay()
        return self._loss


def train(
    model: Model,
    examples: Sequence[Example],
    pairs: Sequence[Pair],
    steps: int,
    device: str,
    *,
    seed: int,
    graph: bool,
    rate: float = LEARNING_RATE,
) -> None:
    """Trains with AdamW, warm-up and a linear decay; fp32 weights, bf16 products on a GPU."""
    current_rate = torch.tensor(0.0, device=device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=current_rate, weight_decay=0.01, fused=True, capturable=device == "cuda"
    )

    def update(*inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = _loss(model, *inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPED_NORM)
        optimizer.step()
        return loss.detach()

    lists = _lists_by_width(examples, device)
    share = np.asarray([len(part[0]) for part in lists]) / len(examples)
    texts = _pair_grids(pairs, device)
    rng = np.random.default_rng(seed)
    model.train()
    taken: dict[int, Step] = {}
    for step in range(steps):
        current_rate.fill_(rate * min((step + 1) / WARM_UP_STEPS, (steps - step) / steps))
        width = int(rng.choice(len(lists), p=share))
        inputs = (*_sample(lists[width], LISTS, rng), *_sample(texts, PAIRS, rng))
        if width not in taken:
            taken[width] = Step(update, inputs, graph=graph)
        loss = taken[width](inputs)
        if step % SHOWN_EVERY == 0:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)
    model.eval()


def _loss(
    model: Model,
    ids: torch.Tensor,
    mask: torch.Tensor,
    answers: torch.Tensor,
    depths: torch.Tensor,
    query_ids: torch.Tensor,
    query_mask: torch.Tensor,
    document_ids: torch.Tensor,
    document_mask: torch.Tensor,
) -> torch.Tensor:
    """Cross entropies of answers and tags, and of the choice of each query's document."""
    hidden = _encode(model, ids, mask)
    loss = functional.cross_entropy(model.answer(hidden[:, 0]).float(), answers)
    loss = loss + functional.cross_entropy(model.depths(hidden).float().transpose(1, 2), depths)
    queries = model.embed(_encode(model, query_ids, query_mask), query_mask).float()
    documents = model.embed(_encode(model, document_ids, document_mask), document_mask).float()
    scores = queries @ documents.T / TEMPERATURE
    return loss + functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def _encode(model: Model, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Hidden states; a mask [B, 1, 1, S] is used as it is, so that nothing reads its values during a capture."""
    hidden: torch.Tensor = model.encoder(input_ids=ids, attention_mask=mask[:, None, None].bool()).last_hidden_state
    return hidden


def _sample(tensors: Tensors, count: int, rng: np.random.Generator) -> Tensors:
    rows = torch.from_numpy(rng.integers(len(tensors[0]), size=count)).to(tensors[0].device)
    return tuple(item[rows] for item in tensors)


def _lists_by_width(examples: Sequence[Example], device: str) -> list[Tensors]:
    """ids, mask, answers and depths of the examples of each width."""
    results = []
    for above, width in zip((0, *WIDTHS), WIDTHS, strict=False):
        part = [item for item in examples if above < len(item.ids) <= width]
        ids, mask = grid([item.ids for item in part], width)
        depths = torch.where(mask.bool(), grid([item.depths for item in part], width)[0], NO_TAG)
        answers = torch.from_numpy(np.asarray([item.answer for item in part]))
        results.append(tuple(item.to(device) for item in (ids, mask, answers, depths)))
    return results


def _pair_grids(pairs: Sequence[Pair], device: str) -> Tensors:
    queries = grid([item.query for item in pairs], LONGEST_QUERY + 1)
    documents = grid([item.document for item in pairs], MAX_LENGTH)
    return tuple(item.to(device) for item in (*queries, *documents))
