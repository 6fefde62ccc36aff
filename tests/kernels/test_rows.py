"""Layer norm, embedding and pooling kernels against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import DATA_TYPES, POOL_MODES, Float, Int64, call, schedule, task_list_entries

from .cases import (
    DEVICE,
    LENGTHS,
    assert_accurate,
    assert_guards,
    cumulative,
    generator,
    poisoned_output,
    with_filler,
)
from .norm_operands import NormOperands, norm_rows, normal

TYPES = [torch.float16, torch.bfloat16, torch.float32]
WIDTHS = [8, 64, 100, 384, 512, 768, 1024, 2048, 5000]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "options", ["", "beta sum", "rms beta", "bias sum", "bias residual beta sum", "residual beta", "rms residual sum"]
)
def test_layer_norm(dtype: torch.dtype, width: int, options: str) -> None:
    rows, eps = 133, 1e-5
    operands = NormOperands.draw(rows, width, dtype, options)
    y, buffer = poisoned_output((rows, width), dtype)
    total, total_buffer = poisoned_output((rows, width), dtype)
    sum_out = total if "sum" in options else None
    call(
        "padfreeLayerNorm", *operands.tensors(), y, sum_out, Int64(rows), width, Float(eps), int(operands.rms),
        DATA_TYPES[dtype],
    )  # fmt: skip
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert_guards(total_buffer)
    plain_sum = operands.sum_in(torch.float32).to(dtype)
    if sum_out is None:
        assert bool(total.isnan().all())
    else:
        assert_accurate(total, plain_sum, operands.sum_in(torch.float64))
    plain = norm_rows(plain_sum, operands.gamma, operands.beta, operands.rms, eps)
    assert_accurate(y, plain, operands.truth(eps))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 100, 384, 768, 1024])
@pytest.mark.parametrize("name", ["mixed", "empty between", "all empty", "many short"])
@pytest.mark.parametrize("options", ["types beta", "positions types", "beta offset"])
def test_embedding(dtype: torch.dtype, width: int, name: str, options: str) -> None:
    lengths = LENGTHS[name]
    tokens, filler, eps = sum(lengths), 21, 1e-12
    words, positions_count, kinds = 997, 600, 3
    word_table = normal(words, width, dtype=dtype, seed=1)
    position_table = normal(positions_count, width, dtype=dtype, seed=2)
    type_table = normal(kinds, width, dtype=dtype, seed=3)
    gamma = normal(width, dtype=dtype, seed=4)
    beta = normal(width, dtype=dtype, seed=5) if "beta" in options else None
    total = tokens + filler
    ids = torch.randint(0, words, (total,), device=DEVICE, dtype=torch.int32, generator=generator(6))
    ids[tokens:] = -123456789
    types = torch.randint(0, kinds, (total,), device=DEVICE, dtype=torch.int32, generator=generator(7))
    inputs = torch.randint(0, positions_count, (total,), device=DEVICE, dtype=torch.int32, generator=generator(8))
    offset = 2 if "offset" in options else 0
    y, buffer = poisoned_output((total, width), dtype)
    call(
        "padfreeEmbedding", ids, types if "types" in options else None, inputs if "positions" in options else None,
        cumulative(lengths), word_table, position_table, type_table if "types" in options else None, gamma, beta, y,
        total, len(lengths), width, words, positions_count, kinds, offset, Float(eps), DATA_TYPES[dtype],
    )  # fmt: skip
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert bool((y[tokens:] == 0).all()), "filler rows must become zeros"
    counted = torch.cat([torch.arange(length) for length in lengths]).to(DEVICE) + offset
    positions = inputs[:tokens].long() if "positions" in options else counted
    inside = (positions < positions_count).unsqueeze(-1)

    def embed(kind: torch.dtype) -> torch.Tensor:
        x = word_table[ids[:tokens].long()].to(kind)
        x = x + position_table[positions.clamp(max=positions_count - 1)].to(kind) * inside
        return x + type_table[types[:tokens].long()].to(kind) if "types" in options else x

    truth = norm_rows(embed(torch.float64), gamma.double(), None if beta is None else beta.double(), False, eps)
    plain = norm_rows(embed(dtype), gamma, beta, False, eps)
    assert_accurate(y[:tokens], plain, truth)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 100, 384, 768, 1024, 2048])
@pytest.mark.parametrize("batch", [1, 2, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("heads", [0, 12])
def test_embeddings_write_the_schedule_of_their_tokens(dtype: torch.dtype, width: int, batch: int, heads: int) -> None:
    """Rows, offsets and tasks have the bits of a schedule followed by an embedding.

    Some lengths sum to less than T, some count as 0, and some exceed T.
    """
    tokens, words, positions = 700, 50, 800
    word_table, position_table = (
        normal(words, width, dtype=dtype, seed=1),
        normal(positions, width, dtype=dtype, seed=2),
    )
    gamma, beta = normal(width, dtype=dtype, seed=3), normal(width, dtype=dtype, seed=4)
    ids = torch.randint(0, words, (tokens,), device=DEVICE, dtype=torch.int32, generator=generator(5))
    drawn = torch.randint(-9, 2 * tokens // batch, (batch,), device=DEVICE, dtype=torch.int32, generator=generator(6))
    short = drawn.clamp(max=(tokens - 3) // batch)
    beyond = short.clone()
    beyond[batch // 2] = 2**31 - 1
    for lengths in (short, drawn, beyond, torch.zeros_like(drawn)):
        entries = task_list_entries(tokens, batch, heads) if heads else 0
        items = []
        for _ in range(2):
            starts, tasks = (poisoned_output(shape, torch.int32) for shape in ((batch + 1,), (entries, 4)))
            items.append({"y": poisoned_output((tokens, width), dtype), "starts": starts, "tasks": tasks})
        (y, starts, tasks), (other_y, other_starts, other_tasks) = ([item for item, _ in of.values()] for of in items)
        schedule(lengths, starts, tokens, tasks=tasks if heads else None, heads=max(heads, 1))
        call(
            "padfreeEmbedding", ids, None, None, starts, word_table, position_table, None, gamma, beta, y,
            tokens, batch, width, words, positions, 0, 2, Float(1e-5), DATA_TYPES[dtype],
        )  # fmt: skip
        call(
            "padfreeEmbeddingOfLengths", ids, None, lengths, word_table, position_table, None, gamma, beta, other_y,
            tokens, batch, width, words, positions, 0, 2, Float(1e-5), DATA_TYPES[dtype], None, Float(1.0),
            other_starts, other_tasks if heads else None, entries - 1, max(heads, 1),
        )  # fmt: skip
        torch.cuda.synchronize()
        for _, buffer in (*items[0].values(), *items[1].values()):
            assert_guards(buffer)
        assert torch.equal(other_starts, starts)
        count = 1 + int(tasks[0, 0]) if heads else 0
        assert torch.equal(other_tasks[:count], tasks[:count])
        assert torch.equal(other_y, y)
        assert bool((y[starts[-1] :] == 0).all())


def test_embedding_takes_ids_out_of_range_as_zeros() -> None:
    width, words = 64, 10
    table = normal(words, width, dtype=torch.float16)
    gamma = torch.ones(width, device=DEVICE, dtype=torch.float16)
    beta = torch.full((width,), 0.5, device=DEVICE, dtype=torch.float16)
    ids = torch.tensor([-1, 10, 2**31 - 1, -(2**31)], dtype=torch.int32, device=DEVICE)
    y, buffer = poisoned_output((4, width), torch.float16)
    call(
        "padfreeEmbedding", ids, None, None, cumulative([4]), table, None, None, gamma, beta, y, 4, 1, width, words, 0,
        0, 0, Float(1e-5), DATA_TYPES[torch.float16],
    )  # fmt: skip
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert bool((y == 0.5).all())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mode", POOL_MODES)
@pytest.mark.parametrize("normalize", [False, True])
def test_pool(dtype: torch.dtype, width: int, mode: str, normalize: bool) -> None:
    for name in ("mixed", "empty between", "all empty", "one long"):
        lengths = LENGTHS[name]
        tokens = sum(lengths)
        x = with_filler(normal(tokens, width, dtype=dtype) + 0.5, 9)
        y, buffer = poisoned_output((len(lengths), width), dtype)
        call(
            "padfreePool", x, cumulative(lengths), y, tokens + 9, len(lengths), width, POOL_MODES[mode],
            int(normalize), DATA_TYPES[dtype],
        )  # fmt: skip
        torch.cuda.synchronize()
        assert_guards(buffer)

        def pool(kind: torch.dtype, x: torch.Tensor = x, lengths: list[int] = lengths) -> torch.Tensor:
            rows, start = [], 0
            for length in lengths:
                part = x[start : start + length].to(kind)
                start += length
                if length == 0:
                    rows.append(torch.zeros(width, dtype=kind, device=DEVICE))
                else:
                    rows.append({"first": part[0], "last": part[-1], "mean": part.mean(0), "max": part.amax(0)}[mode])
            pooled = torch.stack(rows)
            # In fp16 the 1e-12 that guards a row of zeros would be 0, so that the norm is computed in a wider type.
            wide = pooled if kind == torch.float64 else pooled.float()
            return torch.nn.functional.normalize(wide, dim=-1).to(kind) if normalize else pooled

        assert_accurate(y, pool(dtype), pool(torch.float64))
