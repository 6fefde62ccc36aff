# SPDX-License-Identifier: Apache-2.0
"""The entry points of include/padfree.h on a GPU: attention against float64, and packing and unpacking."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
from padfree.runtime import SessionError
from padfree.runtime.c_api import Operand, open_library
from padfree.runtime.gpu import plugin_library

from tests.support.c_api import Status, attention_args, schedule_args

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

LENGTHS = [5, 200, 0, 1, 77, 64, 700, 16, 128]
TYPES = {torch.float32: (0, 3e-6), torch.float16: (1, 2e-3), torch.bfloat16: (2, 1.6e-2)}
FILLER = 19


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    try:
        return open_library(plugin_library.find())
    except SessionError as error:
        pytest.skip(str(error))


@pytest.fixture
def stream() -> Iterator[ctypes.c_void_p]:
    """A stream of the test's own, which is waited for at the end."""
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        yield ctypes.c_void_p(own.cuda_stream)
    torch.cuda.synchronize()


def check(library: ctypes.CDLL, status: int) -> None:
    assert status == Status.OK, library.padfree_last_error().decode()


def schedule(library: ctypes.CDLL, tokens: int, heads: int, stream: Any) -> dict[str, Any]:
    """The outputs of padfree_schedule for LENGTHS."""
    count = len(LENGTHS)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
    size = library.padfree_task_list_bytes(tokens, count, heads)
    sizes = {"cu_seqlens": count + 1, "positions": tokens, "token_index": tokens, "tasks": size // 4}
    made = {name: torch.full((rows,), -9, dtype=torch.int32, device="cuda") for name, rows in sizes.items()}
    args = schedule_args(tokens=tokens, sequences=count, seq_lens=lengths.data_ptr(), max_seq_len=max(LENGTHS))
    for name, tensor in made.items():
        setattr(args, name, tensor.data_ptr())
    args.num_heads, args.tasks_bytes = heads, size
    check(library, library.padfree_schedule(ctypes.byref(args), stream))
    return made


def expected_rows(q: Any, k: Any, v: Any, *, window: tuple[int, int], slopes: Any = None) -> Any:
    """Attention over LENGTHS in float64: q, k and v [T, H, D] give [T, H * D]."""
    ratio = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(ratio, 1), v.double().repeat_interleave(ratio, 1)
    rows, start = [], 0
    for length in LENGTHS:
        part = slice(start, start + length)
        scores = torch.einsum("qhd,khd->hqk", q[part], k[part]) * q.shape[2] ** -0.5
        position = torch.arange(length, device="cuda")
        distance = position[None, :] - position[:, None]
        if slopes is not None:
            scores = scores - slopes.double()[:, None, None] * distance.abs()
        hidden = (window[0] >= 0) & (-distance > window[0]) | (window[1] >= 0) & (distance > window[1])
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        rows.append(torch.einsum("hqk,khd->qhd", weights, v[part]).flatten(1))
        start += length
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_tasks", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "window", "slopes"),
    [
        (12, 12, 64, (-1, -1), False),
        (8, 2, 128, (-1, 0), False),
        (4, 4, 32, (64, 64), False),
        (6, 6, 64, (-1, -1), True),
        (2, 1, 256, (-1, -1), False),
    ],
)
def test_attention(
    library: ctypes.CDLL, stream: Any, dtype: Any, with_tasks: bool, heads: int, kv_heads: int, head_size: int,
    window: tuple[int, int], slopes: bool,
) -> None:  # fmt: skip
    random = torch.Generator(device="cuda").manual_seed(heads)
    tokens = sum(LENGTHS) + FILLER
    q, k, v = (
        torch.randn(tokens, count, head_size, device="cuda", generator=random).to(dtype)
        for count in (heads, kv_heads, kv_heads)
    )
    for tensor in (q, k, v):
        tensor[-FILLER:] = float("nan")
    slope = torch.rand(heads, device="cuda", generator=random)
    made = schedule(library, tokens, heads, stream)
    y = torch.full((tokens, heads * head_size), float("nan"), device="cuda", dtype=dtype)
    operands = [Operand(item.data_ptr(), None, item.stride(0), item.stride(1)) for item in (q, k, v)]
    args = attention_args(*operands, heads=heads, head_size=head_size, tokens=tokens, sequences=len(LENGTHS))
    number, tolerance = TYPES[dtype]
    args.type, args.num_kv_heads, (args.window_left, args.window_right) = number, kv_heads, window
    args.cu_seqlens, args.y = made["cu_seqlens"].data_ptr(), y.data_ptr()
    if with_tasks:
        args.tasks, args.tasks_bytes = made["tasks"].data_ptr(), made["tasks"].numel() * 4
    if slopes:
        args.bias, args.slopes = 1, slope.data_ptr()
    check(library, library.padfree_attention(ctypes.byref(args), stream))
    truth = expected_rows(q[:-FILLER], k[:-FILLER], v[:-FILLER], window=window, slopes=slope if slopes else None)
    assert bool((y[-FILLER:] == 0).all())
    assert float((y[:-FILLER].double() - truth).norm() / truth.norm()) < tolerance


def test_the_schedule_and_the_way_back(library: ctypes.CDLL, stream: Any) -> None:
    tokens, longest, width = sum(LENGTHS) + FILLER, max(LENGTHS), 24
    made = schedule(library, tokens, 4, stream)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    assert made["cu_seqlens"].tolist() == ends.tolist()
    positions = [position for length in LENGTHS for position in range(length)]
    slots = [row * longest + position for row, length in enumerate(LENGTHS) for position in range(length)]
    assert made["positions"].tolist() == positions + [0] * FILLER
    assert made["token_index"].tolist() == slots + [-1] * FILLER
    count = len(LENGTHS) * longest
    padded = torch.randn(count, width, device="cuda", dtype=torch.float16)
    packed = torch.full((tokens, width), 7, device="cuda", dtype=torch.float16)
    back = torch.full_like(padded, 7)
    index, row_bytes = made["token_index"].data_ptr(), width * 2
    check(library, library.padfree_pack(padded.data_ptr(), index, packed.data_ptr(), tokens, count, row_bytes, stream))
    check(library, library.padfree_unpack(packed.data_ptr(), index, back.data_ptr(), tokens, count, row_bytes, stream))
    assert torch.equal(packed[:-FILLER], padded[slots])
    assert not packed[-FILLER:].any()
    kept = torch.zeros(count, dtype=torch.bool, device="cuda")
    kept[slots] = True
    assert torch.equal(back, padded * kept[:, None])


def test_attention_in_a_graph_gives_the_same_bits(library: ctypes.CDLL) -> None:
    heads, head_size, tokens = 12, 64, sum(LENGTHS)
    qkv = torch.randn(tokens, 3, heads, head_size, device="cuda", dtype=torch.float16)
    y = torch.empty(tokens, heads * head_size, device="cuda", dtype=torch.float16)
    made = schedule(library, tokens, heads, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def run() -> None:
        operands = [Operand(qkv[:, part].data_ptr(), None, qkv.stride(0), qkv.stride(2)) for part in range(3)]
        args = attention_args(*operands, heads=heads, head_size=head_size, tokens=tokens, sequences=len(LENGTHS))
        args.cu_seqlens, args.y = made["cu_seqlens"].data_ptr(), y.data_ptr()
        args.tasks, args.tasks_bytes = made["tasks"].data_ptr(), made["tasks"].numel() * 4
        check(library, library.padfree_attention(ctypes.byref(args), torch.cuda.current_stream().cuda_stream))

    run()
    torch.cuda.synchronize()
    first = y.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, first)
