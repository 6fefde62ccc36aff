"""Kernels that start while the one before is still running give the same bits as one after the other."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest
import torch

from tests.support.launchers import (
    DATA_TYPES,
    POOL_MODES,
    Float,
    Int64,
    Positions,
    attention,
    call,
    rotary,
    schedule,
    task_list_entries,
)

from .cases import DEVICE, cumulative, generator

WIDTH = 768
EXTENT = 128
HEADS = 12
WORDS = 500
ROUNDS = 20
"""How often the steps are repeated in one graph."""
REPLAYS = 100

Step = Callable[[], None]


class Chain:
    """Kernels on a few buffers, each of which is read, overwritten with other values, and written again over and over.

    With many `tokens` a step lasts so long that the small ones around it could overtake it.
    """

    def __init__(self, tokens: int) -> None:
        half = {"device": DEVICE, "dtype": torch.float16}
        lengths = [EXTENT - (37 * i) % EXTENT for i in range(2 * tokens // EXTENT)]
        self.batch, self.tokens = len(lengths), sum(lengths)
        self.slots = self.batch * EXTENT
        mask = torch.arange(EXTENT, device=DEVICE) < torch.tensor(lengths, device=DEVICE).unsqueeze(1)
        self.mask = mask.to(torch.int32)
        self.cu_seqlens = cumulative(lengths)
        self.padded = torch.randn(self.slots, WIDTH, generator=generator(1), device=DEVICE).half()
        self.gamma, self.beta, self.bias = (
            torch.randn(WIDTH, generator=generator(seed), device=DEVICE).half() for seed in (2, 3, 4)
        )
        self.table = torch.randn(WORDS, WIDTH, generator=generator(5), device=DEVICE).half()
        self.ids = torch.randint(0, WORDS, (self.tokens,), generator=generator(6), device=DEVICE, dtype=torch.int32)
        self.nowhere = torch.full((self.slots + 1,), -1, device=DEVICE, dtype=torch.int32)
        self.a, self.b, self.c = (torch.zeros(self.tokens, WIDTH, **half) for _ in range(3))
        self.pooled = torch.zeros(self.batch, WIDTH, **half)
        self.wide = torch.zeros(self.tokens, WIDTH, device=DEVICE)
        self.pooler = torch.zeros(self.batch, WORDS, device=DEVICE)
        self.index = torch.zeros(self.slots, device=DEVICE, dtype=torch.int32)
        self.seq_lens = torch.zeros(self.batch, device=DEVICE, dtype=torch.int32)
        self.starts = torch.zeros(self.batch + 1, device=DEVICE, dtype=torch.int32)
        self.slot_of_token = torch.zeros(self.tokens, device=DEVICE, dtype=torch.int32)
        self.positions = torch.zeros(self.tokens, device=DEVICE, dtype=torch.int32)
        self.frequencies = torch.rand(WIDTH // HEADS // 2, generator=generator(7), device=DEVICE)
        self.count = torch.zeros(1, device=DEVICE, dtype=torch.int32)
        entries = task_list_entries(self.tokens, self.batch, HEADS)
        self.tasks = torch.zeros(entries, 4, device=DEVICE, dtype=torch.int32)

    @property
    def state(self) -> tuple[torch.Tensor, ...]:
        """Everything that the steps write."""
        return (
            self.padded, self.a, self.b, self.c, self.pooled, self.index, self.seq_lens, self.starts,
            self.slot_of_token, self.positions, self.count, self.tasks, self.wide, self.pooler,
        )  # fmt: skip

    def layer_norm(self, x: torch.Tensor, residual: torch.Tensor | None, y: torch.Tensor, rows: int = 0) -> Step:
        return lambda: call(
            "padfreeLayerNorm", x, self.bias, residual, self.gamma, self.beta, y, None, Int64(rows or len(x)), WIDTH,
            Float(1e-5), 0, DATA_TYPES[torch.float16],
        )  # fmt: skip

    def clear(self, y: torch.Tensor) -> Step:
        """A step that overwrites rows with zeros."""
        row_bytes = Int64(y[0].numel() * y.element_size())
        return lambda: call("padfreePack", self.table, self.nowhere, y, len(y), Int64(WORDS), row_bytes)

    def steps(self) -> list[Step]:
        """Steps that read what earlier ones wrote, and overwrite what those may still read if they start too early."""
        row_bytes = Int64(2 * WIDTH)
        slots = Int64(self.slots)

        def index() -> None:
            call("padfreeIndex", self.mask, self.index, self.seq_lens, self.count, self.batch, EXTENT)

        def make_schedule() -> None:
            schedule(
                self.seq_lens, self.starts, self.tokens, token_index=self.slot_of_token, padded_length=EXTENT,
                positions=self.positions, tasks=self.tasks, heads=HEADS,
            )  # fmt: skip

        def pack() -> None:
            call("padfreePack", self.padded, self.slot_of_token, self.a, self.tokens, slots, row_bytes)

        def embedding() -> None:
            call(
                "padfreeEmbedding", self.ids, None, None, self.starts, self.table, self.table, None, self.gamma,
                self.beta, self.b, self.tokens, self.batch, WIDTH, WORDS, WORDS, 0, 0, Float(1e-5),
                DATA_TYPES[torch.float16],
            )  # fmt: skip

        def unpack() -> None:
            call("padfreeUnpack", self.b, self.index, self.padded, self.tokens, slots, row_bytes)

        def pool(normalize: int) -> Step:
            return lambda: call(
                "padfreePool", self.c, self.starts, self.pooled, self.tokens, self.batch, WIDTH, POOL_MODES["mean"],
                normalize, DATA_TYPES[torch.float16],
            )  # fmt: skip

        def pool_normed_rows() -> None:
            call(
                "padfreeNormedPool", self.c, self.starts, self.pooled, self.tokens, self.batch, WIDTH,
                POOL_MODES["mean"], 1, DATA_TYPES[torch.float16], None, self.gamma, self.beta, Float(1e-5), 0, 0,
            )  # fmt: skip

        def pooler() -> None:
            call(
                "padfreeLayerNormFp32", self.c, None, None, self.gamma, self.beta, self.a, None, Int64(self.tokens),
                WIDTH, Float(1e-5), 0, DATA_TYPES[torch.float16], self.wide, None, self.starts, self.batch, self.table,
                self.beta, self.pooler, WORDS, 0,
            )  # fmt: skip

        def rotate() -> None:
            rotary(self.c, self.positions, self.frequencies, self.a, heads=HEADS, head_size=WIDTH // HEADS)

        tiny = self.layer_norm(self.pooled, None, self.pooled, 1)
        return [
            index, make_schedule, pack, self.clear(self.padded), embedding, self.layer_norm(self.a, self.b, self.c),
            tiny, self.clear(self.a), pool(1), pooler, tiny, pool_normed_rows,
            self.layer_norm(self.b, self.c, self.a), tiny, tiny, self.clear(self.b),
            self.layer_norm(self.a, self.a, self.b), pool(0), rotate, self.clear(self.c), unpack, self.clear(self.b),
            self.clear(self.slot_of_token), self.clear(self.positions), self.clear(self.starts),
        ]  # fmt: skip


@pytest.mark.parametrize("tokens", [64, 700, 9000])
def test_overlapped_launches_give_the_bits_of_separate_ones(tokens: int) -> None:
    chain = Chain(tokens)
    steps = chain.steps()
    before = [tensor.clone() for tensor in chain.state]
    for _ in range(ROUNDS):
        for step in steps:
            step()
            torch.cuda.synchronize()
    expected = [tensor.clone() for tensor in chain.state]
    assert bool(expected[0].isfinite().all())
    assert not torch.equal(expected[0], before[0])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            for step in steps:
                step()
    for replay in range(REPLAYS if tokens < 5000 else REPLAYS // 5):
        for tensor, value in zip(chain.state, before, strict=True):
            tensor.copy_(value)
        graph.replay()
        different = [i for i, x in enumerate(chain.state) if not torch.equal(x, expected[i])]
        assert not different, f"replay {replay}: buffers {different} differ"


@pytest.mark.parametrize("case", ["ring", "short", "window", "mma"])
def test_attention_reads_lengths_while_the_kernel_ahead_runs(case: str) -> None:
    """The lengths change all the time: a schedule, a kernel that takes long, and attention with those lengths."""
    kernel = "sm90" if case == "ring" else case
    longest, size = 128 if case == "short" else 300, WIDTH // HEADS
    positions = Positions(window=(64, 64)) if case == "window" else Positions()
    lengths = [longest - (37 * i) % longest for i in range(20)]
    batch, tokens = len(lengths), sum(lengths)
    kinds = [torch.tensor(lengths[at:] + lengths[:at], device=DEVICE, dtype=torch.int32) for at in (0, 7, 13)]
    x = torch.randn(4 * tokens, 3 * WIDTH, generator=generator(1), device=DEVICE).half()
    gamma = torch.ones(3 * WIDTH, device=DEVICE, dtype=torch.float16)
    qkv, starts = torch.empty_like(x), torch.zeros(batch + 1, device=DEVICE, dtype=torch.int32)
    tasks = torch.zeros(task_list_entries(tokens, batch, HEADS), 4, device=DEVICE, dtype=torch.int32)
    results = torch.zeros(ROUNDS, tokens, WIDTH, device=DEVICE, dtype=torch.float16)
    operands = [part.view(tokens, HEADS, size) for part in qkv[:tokens].split(WIDTH, dim=1)]

    def steps(at: int, early: bool) -> list[Step]:
        return [
            lambda: schedule(kinds[at % len(kinds)], starts, tokens, tasks=tasks, heads=HEADS),
            lambda: call(
                "padfreeLayerNorm", x, None, None, gamma, None, qkv, None, Int64(len(x)), 3 * WIDTH, Float(1e-5), 0,
                DATA_TYPES[torch.float16],
            ),
            lambda: attention(
                operands, starts, results[at], scale=size**-0.5, max_seq_len=longest, kernel=kernel, tasks=tasks,
                positions=positions, early_lengths=early,
            ),
        ]  # fmt: skip

    assert_early_reads_are_right(steps, results)


@pytest.mark.parametrize("width", [384, 768, 1024, 2048])
@pytest.mark.parametrize("schedules", [False, True])
def test_embeddings_read_ids_while_the_kernel_ahead_runs(width: int, *, schedules: bool) -> None:
    """Ids and lengths change all the time; the schedule is a kernel ahead of the embedding, or part of it."""
    lengths = [300 - (37 * i) % 300 for i in range(20)]
    batch, tokens = len(lengths), sum(lengths)
    inputs = [
        torch.randint(0, WORDS, (tokens,), generator=generator(at), device=DEVICE, dtype=torch.int32) for at in (1, 2)
    ]
    kinds = [torch.tensor(lengths[at:] + lengths[:at], device=DEVICE, dtype=torch.int32) for at in (0, 7, 13)]
    table = torch.randn(WORDS, width, generator=generator(3), device=DEVICE).half()
    gamma = torch.ones(width, device=DEVICE, dtype=torch.float16)
    ids, starts = torch.zeros_like(inputs[0]), torch.zeros(batch + 1, device=DEVICE, dtype=torch.int32)
    tasks = torch.zeros(task_list_entries(tokens, batch, HEADS), 4, device=DEVICE, dtype=torch.int32)
    every = torch.arange(tokens, device=DEVICE, dtype=torch.int32)
    results = torch.zeros(ROUNDS, tokens, width, device=DEVICE, dtype=torch.float16)

    def steps(at: int, early: bool) -> list[Step]:
        lengths = kinds[at % len(kinds)]

        def pack() -> None:
            call("padfreePack", inputs[at % len(inputs)], every, ids, tokens, Int64(tokens), Int64(4))

        def both() -> None:
            call(
                "padfreeEmbeddingOfLengths", ids, ids, lengths, table, table, table, gamma, None, results[at], tokens,
                batch, width, WORDS, WORDS, WORDS, 0, Float(1e-5), DATA_TYPES[torch.float16], None, Float(1.0), starts,
                tasks, len(tasks) - 1, HEADS,
            )  # fmt: skip

        def embedding() -> None:
            call(
                "padfreeEmbeddingE4m3", ids, ids, None, starts, table, table, table, gamma, None, results[at], tokens,
                batch, width, WORDS, WORDS, WORDS, 0, Float(1e-5), DATA_TYPES[torch.float16], int(early), None,
                Float(1.0),
            )  # fmt: skip

        if schedules and early:
            return [pack, both]
        return [pack, lambda: schedule(lengths, starts, tokens), embedding]

    assert_early_reads_are_right(steps, results)


def assert_early_reads_are_right(steps: Callable[[int, bool], list[Step]], results: torch.Tensor) -> None:
    """Checks that ROUNDS rounds in one graph, with early reads, give what the steps give one by one without them."""
    for at in range(ROUNDS):
        for step in steps(at, False):
            step()
            torch.cuda.synchronize()
    expected = results.clone()
    assert not torch.equal(expected[0], expected[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(ROUNDS):
            for step in steps(at, True):
                step()
    for replay in range(REPLAYS):
        results.fill_(float("nan"))
        graph.replay()
        assert torch.equal(results, expected), f"replay {replay}"


def test_launches_overlap_outside_of_graphs_too() -> None:
    chain = Chain(700)
    steps = chain.steps()
    before = [tensor.clone() for tensor in chain.state]
    for step in steps:
        step()
        torch.cuda.synchronize()
    expected = [tensor.clone() for tensor in chain.state]
    for _ in range(REPLAYS):
        for tensor, value in zip(chain.state, before, strict=True):
            tensor.copy_(value)
        for step in steps:
            step()
        assert all(torch.equal(x, y) for x, y in zip(chain.state, expected, strict=True))


@pytest.mark.parametrize("width", [384, 768, 1024])
@pytest.mark.parametrize("kernel", ["pooler", "pool"])
def test_poolers_read_lengths_while_the_kernel_ahead_runs(width: int, kernel: str) -> None:
    """The lengths change all the time: a schedule, a kernel that takes long, and a pooler with those lengths."""
    lengths = [300 - (37 * i) % 300 for i in range(20)]
    batch, tokens = len(lengths), sum(lengths)
    kinds = [torch.tensor(lengths[at:] + lengths[:at], device=DEVICE, dtype=torch.int32) for at in (0, 7, 13)]
    inputs = torch.randn(4 * tokens, width, generator=generator(1), device=DEVICE).half()
    weight = torch.randn(width, width, generator=generator(2), device=DEVICE).half() / width**0.5
    gamma = torch.ones(width, device=DEVICE, dtype=torch.float16)
    x, starts = torch.empty_like(inputs), torch.zeros(batch + 1, device=DEVICE, dtype=torch.int32)
    rows = torch.empty(tokens, width, device=DEVICE)
    results = torch.zeros(ROUNDS, batch, width, device=DEVICE)
    half = DATA_TYPES[torch.float16]

    def steps(at: int, early: bool) -> list[Step]:
        def make_x() -> None:
            call(
                "padfreeLayerNorm", inputs, None, None, gamma, None, x, None, Int64(len(x)), width, Float(1e-5), 0, half
            )

        def pooler() -> None:
            call(
                "padfreeLayerNormFp32", x, None, None, gamma, None, None, None, Int64(tokens), width, Float(1e-5), 0,
                half, rows, None, starts, batch, weight, gamma, results[at], width, int(early),
            )  # fmt: skip

        def pool() -> None:
            call(
                "padfreeNormedPool", x, starts, None, tokens, batch, width, POOL_MODES["mean"], 1, half, results[at],
                gamma, None, Float(1e-5), 0, int(early),
            )  # fmt: skip

        return [
            lambda: schedule(kinds[at % len(kinds)], starts, tokens),
            make_x,
            pooler if kernel == "pooler" else pool,
        ]

    assert_early_reads_are_right(steps, results)
