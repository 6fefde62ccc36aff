# SPDX-License-Identifier: Apache-2.0
"""The peers in the benchmark of memory-bound kernels, on the CPU, with PyTorch."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels import row_cases

TOKENS, WIDTH = 700, 8


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cases, "DEVICE", "cpu")


def test_full_size_has_the_widths_that_targets_were_set_at() -> None:
    names = [case.name for case in row_cases.all_cases()]
    assert len(set(names)) == len(names)
    for kernel in ("layer norm", "embedding + layer norm", "pack"):
        assert {f"{kernel}, T 16384, E {width}" for width in (768, 1024)} <= set(names)


def test_slots_ascend_in_ragged_sequences() -> None:
    kept, slots = row_cases.kept_slots(TOKENS, 0)
    assert len(kept) == TOKENS
    assert bool((kept.diff() > 0).all())
    assert slots % row_cases.SEQUENCE == 0
    lengths = torch.bincount(kept // row_cases.SEQUENCE)
    assert int(lengths[0]) < row_cases.SEQUENCE
    assert bool((kept % row_cases.SEQUENCE < lengths[kept // row_cases.SEQUENCE]).all())


def test_peers_of_pack_unpack_and_index_agree_with_each_other() -> None:
    kept, slots = row_cases.kept_slots(TOKENS, 0)
    assert torch.equal(row_cases.index(TOKENS)(0).peer(), kept.int())
    assert torch.equal(row_cases.pack_ids(TOKENS)(0).peer(), kept.int())
    padded = row_cases.unpack(TOKENS, WIDTH)(0).peer()
    assert padded.shape == (slots, WIDTH)
    assert torch.equal(padded[kept], row_cases.normal(0, TOKENS, WIDTH))
    assert int((padded != 0).any(1).sum()) <= TOKENS


def test_bytes_are_counted_once() -> None:
    assert row_cases.pack_ids(TOKENS)(0).num_bytes == 3 * 4 * TOKENS
    gathered = row_cases.gather(TOKENS, WIDTH)(0)
    assert gathered.num_bytes < (2 * WIDTH * 2 + 4) * TOKENS  # tokens share rows
    assert gathered.output.numel() * 2 < gathered.num_bytes
