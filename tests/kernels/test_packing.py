"""Index, pack, unpack and schedule kernels: exact."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import Int64, call, schedule

from .cases import DEVICE, LENGTHS, POISON, assert_guards, cumulative, generator, poisoned_output

MASKS = ["prefix", "left", "holes", "ones", "zeros"]


def make_mask(kind: str, batch: int, extent: int) -> torch.Tensor:
    lengths = torch.randint(0, extent + 1, (batch, 1), device=DEVICE, generator=generator())
    slots = torch.arange(extent, device=DEVICE)
    mask = {
        "prefix": slots < lengths,
        "left": slots >= extent - lengths,
        "holes": torch.rand(batch, extent, device=DEVICE, generator=generator(1)) < 0.6,
        "ones": torch.ones(batch, extent, device=DEVICE, dtype=torch.bool),
        "zeros": torch.zeros(batch, extent, device=DEVICE, dtype=torch.bool),
    }[kind]
    return mask.to(torch.int32) * 5  # any non-zero value keeps a slot


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (3, 1000), (300, 17)])
def test_index(kind: str, shape: tuple[int, int]) -> None:
    mask = make_mask(kind, *shape)
    token_index, index_buffer = poisoned_output((shape[0] * shape[1],), torch.int32)
    seq_lens, lens_buffer = poisoned_output((shape[0],), torch.int32)
    num_tokens, count_buffer = poisoned_output((1,), torch.int32)
    call("padfreeIndex", mask, token_index, seq_lens, num_tokens, *shape)
    torch.cuda.synchronize()
    for buffer in (index_buffer, lens_buffer, count_buffer):
        assert_guards(buffer)
    expected = mask.flatten().nonzero().flatten().to(torch.int32)
    assert int(num_tokens) == len(expected)
    assert torch.equal(token_index[: len(expected)], expected)
    assert bool((token_index[len(expected) :] == POISON[torch.int32]).all())
    assert torch.equal(seq_lens, (mask != 0).sum(1).to(torch.int32))


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("row", [(1, torch.int32), (1, torch.float16), (5, torch.float16), (768, torch.float16)])
@pytest.mark.parametrize("filler", [0, 13])
def test_pack_and_unpack(kind: str, row: tuple[int, torch.dtype], filler: int) -> None:
    batch, extent = 9, 77
    width, dtype = row
    mask = make_mask(kind, batch, extent)
    kept = mask.flatten().nonzero().flatten()
    index = torch.cat([kept, torch.full((filler,), -1, device=DEVICE)]).to(torch.int32)
    x = torch.randint(-1000, 1000, (batch * extent, width), device=DEVICE, generator=generator()).to(dtype)
    packed, packed_buffer = poisoned_output((len(index), width), dtype)
    slots, row_bytes = Int64(batch * extent), Int64(width * packed.element_size())
    call("padfreePack", x, index, packed, len(index), slots, row_bytes)
    torch.cuda.synchronize()
    assert_guards(packed_buffer)
    assert torch.equal(packed[: len(kept)], x[kept])
    assert bool((packed[len(kept) :] == 0).all())

    back, back_buffer = poisoned_output((batch * extent, width), dtype)
    call("padfreeUnpack", packed, index, back, len(index), slots, row_bytes)
    torch.cuda.synchronize()
    assert_guards(back_buffer)
    assert torch.equal(back, x * (mask.view(-1, 1) != 0).to(dtype))


def test_pack_takes_slots_out_of_range_as_zeros() -> None:
    x = torch.ones(6, 8, device=DEVICE, dtype=torch.float16)
    index = torch.tensor([6, -1, 2**31 - 1, -(2**31), 5], dtype=torch.int32, device=DEVICE)
    y, buffer = poisoned_output((5, 8), torch.float16)
    call("padfreePack", x, index, y, 5, Int64(6), Int64(16))
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert y.sum(1).tolist() == [0, 0, 0, 0, 8]


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("filler", [0, 50])
@pytest.mark.parametrize("extent", [16, 2000])
def test_schedule(name: str, filler: int, extent: int) -> None:
    lengths = LENGTHS[name]
    tokens = sum(lengths) + filler
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    cu_seqlens, cu_buffer = poisoned_output((len(lengths) + 1,), torch.int32)
    token_index, index_buffer = poisoned_output((tokens,), torch.int32)
    positions, positions_buffer = poisoned_output((tokens,), torch.int32)
    schedule(seq_lens, cu_seqlens, tokens, token_index=token_index, padded_length=extent, positions=positions)
    torch.cuda.synchronize()
    for buffer in (cu_buffer, index_buffer, positions_buffer):
        assert_guards(buffer)
    assert torch.equal(cu_seqlens, cumulative(lengths))
    assert positions.tolist() == [s for length in lengths for s in range(length)] + [0] * filler
    alone = torch.empty_like(positions)
    schedule(seq_lens, cu_seqlens, tokens, positions=alone)
    assert torch.equal(alone, positions)
    expected = [b * extent + s if s < extent else -1 for b, length in enumerate(lengths) for s in range(length)]
    assert token_index.tolist() == expected + [-1] * filler


@pytest.mark.parametrize("batch", [0, 1, 31, 1024, 1025, 5000])
def test_schedule_of_many_sequences(batch: int) -> None:
    seq_lens = torch.randint(0, 9, (batch,), device=DEVICE, dtype=torch.int32, generator=generator())
    cu_seqlens, buffer = poisoned_output((batch + 1,), torch.int32)
    schedule(seq_lens, cu_seqlens, 10**6)
    torch.cuda.synchronize()
    assert_guards(buffer)
    assert torch.equal(cu_seqlens, cumulative(seq_lens.tolist()))


def test_schedule_clamps_hostile_lengths() -> None:
    for lengths, expected in (
        ([5, -3, 7], [0, 5, 5, 12]),
        ([50, 60, 70], [0, 50, 100, 100]),
        ([2**31 - 1, 2**31 - 1, 1], [0, 100, 100, 100]),
        ([-(2**31), 1], [0, 0, 1]),
    ):
        seq_lens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        cu_seqlens, buffer = poisoned_output((len(lengths) + 1,), torch.int32)
        schedule(seq_lens, cu_seqlens, 100)
        torch.cuda.synchronize()
        assert_guards(buffer)
        assert cu_seqlens.tolist() == expected
