# SPDX-License-Identifier: Apache-2.0
"""varlen_attention against PyTorch's own attention, on the CPU and on the GPU, compiled and captured."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from padfree.runtime import SessionError

from tests.support.libraries import write_library

pytestmark = pytest.mark.needs_torch
torch: Any = pytest.importorskip("torch")

LENGTHS = (5, 1, 0, 37, 130)
FILLER = 3
OPTIONS = (
    {},
    {"causal": True},
    {"window": (4, 7)},
    {"window": (9, -1), "causal": True},
    {"scale": 0.3},
    {"slopes": True},
)
GPU_CLOSE = {"float32": 2e-5, "float16": 3e-3, "bfloat16": 2e-2}


def operands(heads: int, kv_heads: int, size: int, device: str = "cpu", dtype: str = "float32") -> tuple[Any, ...]:
    torch.manual_seed(0)
    tokens = sum(LENGTHS) + FILLER
    items = [torch.randn(tokens, count, size) for count in (heads, kv_heads, kv_heads)]
    ends = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32, device=device)
    return (*(one.to(device, getattr(torch, dtype)) for one in items), ends)


def options_of(asked: dict[str, Any], heads: int, device: str = "cpu") -> dict[str, Any]:
    if "slopes" not in asked:
        return asked
    return {**asked, "slopes": torch.linspace(0.1, 1, heads, device=device)}


def expected_rows(q: Any, k: Any, v: Any, ends: Any, asked: dict[str, Any]) -> Any:
    """The results of scaled_dot_product_attention in float64, one sequence at a time."""
    result = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    left, right = asked.get("window", (-1, -1))
    right = 0 if asked.get("causal") else right
    for start, end in pairwise(ends.tolist()):
        at = torch.arange(end - start, device=q.device)
        distance = at[None, :] - at[:, None]
        kept = (distance >= -left if left >= 0 else True) & (distance <= right if right >= 0 else distance == distance)
        bias = torch.where(kept, 0.0, -torch.inf).double()
        if "slopes" in asked:
            bias = bias - asked["slopes"].double()[:, None, None] * distance.abs()
        rows = [one[start:end].double().transpose(0, 1)[None] for one in (q, k, v)]
        actual = torch.nn.functional.scaled_dot_product_attention(
            *rows, attn_mask=bias, scale=asked.get("scale"), enable_gqa=True
        )
        result[start:end] = actual[0].transpose(0, 1)
    return result


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("asked", OPTIONS, ids=str)
def test_on_the_cpu(heads: tuple[int, int], asked: dict[str, Any]) -> None:
    from padfree.torch import varlen_attention

    q, k, v, ends = operands(*heads, 16)
    asked = options_of(asked, heads[0])
    actual = varlen_attention(q, k, v, ends, max(LENGTHS), **asked)
    assert torch.allclose(actual.double(), expected_rows(q, k, v, ends, asked), atol=1e-5)
    assert not actual[sum(LENGTHS) :].any()


def test_the_operator_is_sound() -> None:
    from padfree.torch.attention import _operator

    q, k, v, ends = operands(4, 2, 8)
    torch.library.opcheck(_operator, (q, k, v, ends, None, 0, 0.5, -1, 0))


def test_it_compiles_in_one_graph() -> None:
    from padfree.torch import varlen_attention

    q, k, v, ends = operands(4, 4, 8)
    compiled = torch.compile(
        lambda *tensors: varlen_attention(*tensors, causal=True) * 2, fullgraph=True, backend="aot_eager"
    )
    assert torch.allclose(compiled(q, k, v, ends), varlen_attention(q, k, v, ends, causal=True) * 2)


def test_what_does_not_fit_is_refused() -> None:
    from padfree.torch import varlen_attention

    q, k, v, ends = operands(4, 2, 8)
    for changed, named in (
        ((q[0], k, v, ends), "shapes"),
        ((q, k[:, :1], v, ends), "shapes"),
        ((q[:, :3], k, v, ends), "a divisor"),
        ((q.half(), k, v, ends), "the same for all"),
        ((q, k, v, ends.long()), "int32"),
        ((q, k, v, ends, 0, torch.ones(3)), None),
        ((q.clone().requires_grad_(), k, v, ends), "no gradient"),
    ):
        with pytest.raises(TypeError if named is None else SessionError, match=named):
            varlen_attention(*changed)
    with torch.no_grad():
        varlen_attention(q.clone().requires_grad_(), k, v, ends)
    with pytest.raises(SessionError, match="slopes"):
        varlen_attention(q, k, v, ends, slopes=torch.ones(3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(GPU_CLOSE))
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("asked", OPTIONS, ids=str)
def test_on_the_gpu(heads: tuple[int, int], asked: dict[str, Any], dtype: str) -> None:
    from padfree.torch import varlen_attention

    q, k, v, ends = operands(*heads, 64, "cuda", dtype)
    asked = options_of(asked, heads[0], "cuda")
    actual = varlen_attention(q, k, v, ends, max(LENGTHS), **asked)
    assert torch.allclose(
        actual.double(), expected_rows(q, k, v, ends, asked), atol=GPU_CLOSE[dtype], rtol=GPU_CLOSE[dtype]
    )
    assert not actual[sum(LENGTHS) :].any()


@pytest.mark.gpu
def test_slices_compiled_and_captured_on_the_gpu() -> None:
    from padfree.torch import varlen_attention

    *_, ends = operands(1, 1, 8, "cuda")
    qkv = torch.randn(sum(LENGTHS) + FILLER, 3, 4, 64, device="cuda", dtype=torch.float16)
    q, k, v = qkv.unbind(1)
    plain = varlen_attention(q, k, v, ends)
    assert torch.equal(plain, varlen_attention(q.contiguous(), k.contiguous(), v.contiguous(), ends))
    assert torch.equal(plain, torch.compile(varlen_attention, fullgraph=True)(q, k, v, ends))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = varlen_attention(q, k, v, ends)
    qkv.copy_(torch.randn_like(qkv))
    graph.replay()
    assert torch.equal(captured, varlen_attention(q, k, v, ends))


def test_a_library_without_the_gpus_code_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from padfree.torch import c_interface

    def load() -> Any:
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA L4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(c_interface, "library", load)
    library = write_library(tmp_path / "libpadfree.so", "90a")
    monkeypatch.setenv("PADFREE_LIBRARY", str(library))
    q, k, v, ends = operands(4, 4, 16, dtype="float16")
    arguments = (q, k, v, ends, None, torch.empty_like(q), max(LENGTHS), 0.25, (-1, -1))
    with pytest.raises(SessionError, match=r"NVIDIA L4 \(compute capability 8\.9\) needs code for 80, .* 90a alone"):
        c_interface.attention(*arguments)
    write_library(library, "80,90a")
    with pytest.raises(InterruptedError):
        c_interface.attention(*arguments)
