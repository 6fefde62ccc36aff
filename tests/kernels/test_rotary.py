"""The rotary embedding's own kernel against float64 truth."""

# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from tests.support.launchers import rotary

from .cases import DEVICE, assert_accurate, assert_guards, generator, poisoned_output

TYPES = [torch.float16, torch.bfloat16, torch.float32]
LONGEST = 8192


def rotate(
    x: torch.Tensor, angle: torch.Tensor, heads: int, head_size: int, *, interleaved: bool, dtype: torch.dtype
) -> torch.Tensor:
    """Rotates x in the given type; cosines and sines are rounded to it as transformers rounds them."""
    cosine, sine = ((of(angle.double())).to(dtype)[:, None] for of in (torch.cos, torch.sin))
    split = x[:, : heads * head_size].to(dtype).unflatten(1, (heads, head_size))
    first, second = (split[..., ::2], split[..., 1::2]) if interleaved else split.chunk(2, -1)
    pair = (first * cosine - second * sine, second * cosine + first * sine)
    result = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([result.flatten(1), x[:, heads * head_size :].to(dtype)], 1)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "head_size", "width"),
    [(24, 64, 2304), (1, 64, 64), (3, 16, 48), (2, 128, 264), (5, 32, 168), (2, 8, 24), (3, 6, 19), (1, 2, 2),
     (2, 2304, 4616), (4, 256, 1024), (40, 128, 6144)],
)  # fmt: skip
def test_rotary(dtype: torch.dtype, interleaved: bool, heads: int, head_size: int, width: int) -> None:
    for tokens in (1, 7, 128, 513):
        x = torch.randn(tokens, width, device=DEVICE, generator=generator(1)).to(dtype)
        positions = torch.randint(0, LONGEST, (tokens,), device=DEVICE, dtype=torch.int32, generator=generator(2))
        pairs = head_size // 2
        frequencies = (10000.0 ** -(torch.arange(pairs, device=DEVICE, dtype=torch.float64) / pairs)).float()
        frequencies[-1] = 0
        y, buffer = poisoned_output((tokens, width), dtype)
        rotary(x, positions, frequencies, y, heads=heads, head_size=head_size, interleaved=interleaved)
        torch.cuda.synchronize()
        assert_guards(buffer)
        angle = positions[:, None].float() * frequencies
        plain, truth = (
            rotate(x, angle, heads, head_size, interleaved=interleaved, dtype=item) for item in (dtype, torch.float64)
        )
        assert_accurate(y, plain, truth)
        assert torch.equal(y[:, heads * head_size :], x[:, heads * head_size :])


def test_many_tokens_give_the_same_bits_again() -> None:
    x = torch.randn(70_001, 2304, device=DEVICE, generator=generator(1)).half()
    positions = torch.arange(70_001, device=DEVICE, dtype=torch.int32) % LONGEST
    frequencies = torch.rand(32, device=DEVICE, generator=generator(2))
    first, again = (poisoned_output(x.shape, x.dtype)[0] for _ in range(2))
    for y in (first, again):
        rotary(x, positions, frequencies, y, heads=24, head_size=64)
    truth = rotate(x, positions[:, None].float() * frequencies, 24, 64, interleaved=False, dtype=torch.float64)
    assert_accurate(first, truth.half(), truth)
    assert torch.equal(first, again)


@pytest.mark.parametrize("sizes", [(2, 64, 127), (2, 7, 64), (0, 64, 64)])
def test_rejects_sizes_that_do_not_fit(sizes: tuple[int, int, int]) -> None:
    heads, head_size, width = sizes
    x = torch.zeros(4, width, device=DEVICE)
    positions = torch.zeros(4, device=DEVICE, dtype=torch.int32)
    with pytest.raises(RuntimeError):
        rotary(x, positions, torch.zeros(32, device=DEVICE), torch.empty_like(x), heads=heads, head_size=head_size)
