# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of PyTorch's work read memory that belongs to that work alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

ELEMENTS = 16 << 20  # of 4 bytes: they get a segment of their own, which the allocator gives back once it is empty


def test_replays_after_the_allocator_gave_back_what_is_free() -> None:
    from padfree.builder.peers.timing import capture

    total = torch.zeros((), device="cuda")

    def record() -> object:
        ones = torch.ones(ELEMENTS, device="cuda")
        return capture(lambda: torch.sum(ones, 0, out=total))

    replay = record()
    torch.cuda.empty_cache()  # as the next capture does
    others = torch.zeros(ELEMENTS, device="cuda")
    total.zero_()
    assert callable(replay)
    replay()
    torch.cuda.synchronize()
    assert float(total) == ELEMENTS
    assert not others.any()
