"""Tensors of more than 2^31 elements: every index into [T, E] has 64 bits. Skipped if there is too little memory."""

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator

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
    has_hopper_kernels,
    linear,
    make_tasks,
    rotary,
    schedule,
)

from .cases import DEVICE, assert_accurate, assert_guards, generator, poisoned_output

SHAPES = [(1 << 22, 1024), ((1 << 28) + 3, 8)]
HALF = torch.float16
PART = 1 << 27  # elements for which the truth is computed at a time
LENGTH, HEADS, HEAD_SIZE = 64, 16, 64
SPARE_BYTES = 8 << 30  # what computing the truth takes


@pytest.fixture(autouse=True)
def _room() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def need(elements: int, dtype: torch.dtype = HALF) -> None:
    """Skips the test if so many elements and the truth do not fit in memory."""
    free, _ = torch.cuda.mem_get_info()
    wanted = elements * dtype.itemsize + SPARE_BYTES
    if free < wanted:
        pytest.skip(f"{free >> 30} GiB are free, {wanted >> 30} are needed")


def normal(*shape: int, dtype: torch.dtype = HALF, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, generator=generator(seed), dtype=dtype)


def ids(tokens: int, limit: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, limit, (tokens,), device=DEVICE, generator=generator(seed), dtype=torch.int32)


def starts_of(tokens: int, length: int) -> torch.Tensor:
    """cu_seqlens of sequences of equal length."""
    return torch.arange(0, tokens + 1, length, device=DEVICE, dtype=torch.int32)


def check(y: torch.Tensor, buffer: torch.Tensor, wanted: Callable[[slice, torch.dtype], torch.Tensor]) -> None:
    """Compares all rows; `wanted` computes a slice of them in a type."""
    torch.cuda.synchronize()
    assert_guards(buffer)
    step = PART // y.shape[1]
    for start in range(0, len(y), step):
        part = slice(start, min(start + step, len(y)))
        assert_accurate(y[part], wanted(part, y.dtype).to(y.dtype), wanted(part, torch.float64))


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_layer_norm(tokens: int, width: int) -> None:
    need(4 * tokens * width)
    x, residual, gamma, beta = normal(tokens, width), normal(tokens, width, seed=1), normal(width), normal(width)
    (y, buffer), (total, total_buffer) = (poisoned_output((tokens, width), HALF) for _ in range(2))
    call(
        "padfreeLayerNorm", x, None, residual, gamma, beta, y, total, Int64(tokens), width, Float(1e-5), 0,
        DATA_TYPES[HALF],
    )  # fmt: skip

    def add(part: slice, dtype: torch.dtype) -> torch.Tensor:
        return x[part].to(dtype) + residual[part].to(dtype)

    def norm(part: slice, dtype: torch.dtype) -> torch.Tensor:
        rows = add(part, torch.float64 if dtype == torch.float64 else torch.float32)
        return torch.nn.functional.layer_norm(rows, (width,), gamma.to(rows.dtype), beta.to(rows.dtype), 1e-5)

    check(total, total_buffer, add)
    check(y, buffer, norm)


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_embedding(tokens: int, width: int) -> None:
    need(tokens * width + 6 * tokens)
    words, indices, length = 5000, 64, 64
    word_table, position_table, gamma = normal(words, width), normal(indices, width, seed=1), normal(width, seed=2)
    word_ids = ids(tokens, words)
    y, buffer = poisoned_output((tokens, width), HALF)
    starts = starts_of(tokens, length)
    call(
        "padfreeEmbedding", word_ids, None, None, starts, word_table, position_table, None, gamma, None, y, tokens,
        len(starts) - 1, width, words, indices, 0, 0, Float(1e-5), DATA_TYPES[HALF],
    )  # fmt: skip
    covered = tokens // length * length
    assert bool((y[covered:] == 0).all())

    def embed(part: slice, dtype: torch.dtype) -> torch.Tensor:
        positions = torch.arange(part.start, part.stop, device=DEVICE) % length
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        rows = word_table[word_ids[part].long()].to(wide) + position_table[positions].to(wide)
        return torch.nn.functional.layer_norm(rows, (width,), gamma.to(wide), None, 1e-5)

    torch.cuda.synchronize()
    assert_guards(buffer)
    check(y[:covered], buffer, embed)


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_rotary(tokens: int, width: int) -> None:
    need(2 * tokens * width + 4 * tokens)
    x, positions, half = normal(tokens, width), ids(tokens, 500), 4
    frequencies = torch.linspace(0.1, 1, half, device=DEVICE)
    y, buffer = poisoned_output((tokens, width), HALF)
    heads = width // (2 * half)
    rotary(x, positions, frequencies, y, heads=heads, head_size=2 * half)

    def rotate(part: slice, dtype: torch.dtype) -> torch.Tensor:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        angles = (positions[part].float()[:, None] * frequencies).to(wide)[:, None]
        low, high = x[part].to(wide).view(-1, heads, 2, half).unbind(2)
        cosine, sine = angles.cos(), angles.sin()
        return torch.stack([low * cosine - high * sine, high * cosine + low * sine], 2).view(-1, width)

    check(y, buffer, rotate)


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_pack_and_unpack(tokens: int, width: int) -> None:
    need(3 * tokens * width + 4 * tokens)
    x, row_bytes = normal(tokens, width), Int64(2 * width)
    index = torch.arange(tokens, device=DEVICE, dtype=torch.int32)
    index[1::3] = -1
    index = torch.cat([index[index >= 0], index[index < 0]])
    packed, buffer = poisoned_output((tokens, width), HALF)
    call("padfreePack", x, index, packed, tokens, Int64(tokens), row_bytes)
    torch.cuda.synchronize()
    assert_guards(buffer)
    back, back_buffer = poisoned_output((tokens, width), HALF)
    call("padfreeUnpack", packed, index, back, tokens, Int64(tokens), row_bytes)
    torch.cuda.synchronize()
    assert_guards(back_buffer)
    x[1::3] = 0
    assert torch.equal(back, x)


@pytest.mark.parametrize("mode", POOL_MODES)
@pytest.mark.parametrize("length", [1, LENGTH])
def test_pool(mode: str, length: int) -> None:
    tokens, width = SHAPES[0]
    need(tokens * width * (2 if length == 1 else 1))
    x, starts = normal(tokens, width), starts_of(tokens, length)
    y, buffer = poisoned_output((len(starts) - 1, width), HALF)
    call("padfreePool", x, starts, y, tokens, len(y), width, POOL_MODES[mode], 0, DATA_TYPES[HALF])

    def pool(part: slice, dtype: torch.dtype) -> torch.Tensor:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        rows = x[part.start * length : part.stop * length].view(-1, length, width)
        return {
            "first": lambda: rows[:, 0],
            "last": lambda: rows[:, -1],
            "mean": lambda: rows.to(wide).mean(1),
            "max": lambda: rows.amax(1),
        }[mode]().to(wide)

    torch.cuda.synchronize()
    step = PART // width // length
    for start in range(0, len(y), step):
        part = slice(start, min(start + step, len(y)))
        assert_accurate(y[part], pool(part, HALF).half(), pool(part, torch.float64))
    assert_guards(buffer)


@pytest.mark.parametrize(("depth", "width"), [(1024, 1024), (1024, 4096), (4096, 1024)])
def test_linear(depth: int, width: int) -> None:
    if not has_hopper_kernels():
        pytest.skip("padfree's GEMMs need a Hopper GPU")
    tokens = 1 << 22
    need(tokens * (depth + 2 * width))
    x, weight, bias = normal(tokens, depth), normal(depth, width, seed=1) / depth**0.5, normal(width, seed=2)
    residual = normal(tokens, width, seed=3)
    y, buffer = poisoned_output((tokens, width), HALF)
    linear(x, weight, y, bias=bias, residual=residual)

    def multiply(part: slice, dtype: torch.dtype) -> torch.Tensor:
        return x[part].to(dtype) @ weight.to(dtype) + bias.to(dtype) + residual[part].to(dtype)

    torch.cuda.synchronize()
    assert_guards(buffer)
    for start in (0, tokens // 2 - 4096, tokens - 8192):  # the beginning, both sides of 2^31 elements, the end
        part = slice(start, start + 8192)
        assert_accurate(y[part], multiply(part, HALF), multiply(part, torch.float64))
    for start in range(0, tokens, 1 << 18):
        part = slice(start, start + (1 << 18))
        assert bool(((y[part] - multiply(part, HALF)).abs() < 0.1).all())


KERNELS = [("auto", 0, "plain"), ("mma", 0, "plain"), ("auto", LENGTH, "plain"), ("window", 0, "window"),
           ("auto", 0, "slopes"), ("auto", 0, "disentangled")]  # fmt: skip


@pytest.mark.parametrize(("kernel", "max_seq_len", "kind"), KERNELS)
def test_attention(kernel: str, max_seq_len: int, kind: str) -> None:
    if kernel == "window" and not has_hopper_kernels():
        pytest.skip("the kernel for windows needs a Hopper GPU")
    tokens, width = 1 << 22, HEADS * HEAD_SIZE
    need(4 * tokens * width)
    qkv = normal(tokens, 3, HEADS, HEAD_SIZE)
    operands, starts = qkv.unbind(1), starts_of(tokens, LENGTH)
    distance = torch.arange(LENGTH, device=DEVICE)[None] - torch.arange(LENGTH, device=DEVICE)[:, None]
    added = torch.zeros(HEADS, LENGTH, LENGTH, device=DEVICE, dtype=torch.float64)
    positions = Positions()
    if kind == "window":
        positions = Positions((9, 5))
        added = added.masked_fill((distance < -9) | (distance > 5), float("-inf"))
    elif kind == "slopes":
        positions = Positions(slopes=torch.linspace(0.1, 1, HEADS, device=DEVICE))
        assert positions.slopes is not None
        added = -positions.slopes.double()[:, None, None] * distance.abs()
    elif kind == "disentangled":
        positions = Positions(k_position=torch.zeros(17, width, device=DEVICE, dtype=HALF))
    y, buffer = poisoned_output((tokens, width), HALF)
    attention(
        operands, starts, y, scale=0.125, max_seq_len=max_seq_len, kernel=kernel, positions=positions,
        tasks=make_tasks(starts, tokens, HEADS),
    )  # fmt: skip

    def attend(part: slice, dtype: torch.dtype) -> torch.Tensor:
        q, k, v = (qkv[part, i].view(-1, LENGTH, HEADS, HEAD_SIZE).transpose(1, 2).to(dtype) for i in range(3))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        scores = (q @ k.transpose(2, 3)).to(wide) * 0.125 + added.to(wide)
        return (scores.softmax(-1).to(dtype) @ v).transpose(1, 2).reshape(-1, width)

    check(y, buffer, attend)


def test_index_of_almost_2_31_slots() -> None:
    batch, extent = 1 << 20, 2047
    need(2 * batch * extent, torch.int32)
    mask = torch.zeros(batch, extent, device=DEVICE, dtype=torch.int32)
    mask[:, ::5] = 1
    token_index, buffer = poisoned_output((batch * extent,), torch.int32)
    lengths, lengths_buffer = poisoned_output((batch,), torch.int32)
    count, count_buffer = poisoned_output((1,), torch.int32)
    call("padfreeIndex", mask, token_index, lengths, count, batch, extent)
    torch.cuda.synchronize()
    for item in (buffer, lengths_buffer, count_buffer):
        assert_guards(item)
    kept = (extent + 4) // 5
    assert bool((lengths == kept).all())
    assert int(count) == batch * kept
    rows = torch.arange(batch, device=DEVICE, dtype=torch.int64)[:, None] * extent
    expected = rows + torch.arange(0, extent, 5, device=DEVICE)
    assert torch.equal(token_index[: batch * kept].view(batch, kept), expected.to(torch.int32))


def test_schedule_of_many_tokens() -> None:
    tokens = (1 << 30) + 5
    need(2 * tokens, torch.int32)
    lengths = torch.full((1 << 20,), 1 << 10, device=DEVICE, dtype=torch.int32)
    starts, buffer = poisoned_output((len(lengths) + 1,), torch.int32)
    positions, positions_buffer = poisoned_output((tokens,), torch.int32)
    schedule(lengths, starts, tokens, positions=positions)
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert_guards(positions_buffer)
    assert torch.equal(starts, starts_of(1 << 30, 1 << 10))
    assert bool((positions[: 1 << 30].view(-1, 1 << 10) == torch.arange(1 << 10, device=DEVICE)).all())
    assert positions[1 << 30 :].tolist() == [0] * 5
