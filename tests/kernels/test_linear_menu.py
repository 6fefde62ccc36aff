"""Which tilings exist: every tiling on the list launches, and choices in older engines still work."""

# SPDX-License-Identifier: Apache-2.0
import ctypes
import itertools
from collections.abc import Iterator

import torch

from tests.support.launchers import ACTIVATIONS, DATA_TYPES, LinearCall, library, tiling_of

from .cases import needs_tilings
from .test_linear import AUTO, check, measured_tilings

pytestmark = needs_tilings

MULTIPROCESSORS = 132
MOST = 512
NORMS = ((), ("x",), ("residual", "y"), ("residual",), ("y",))


def calls(there: int = 1 << 20) -> Iterator[LinearCall]:
    """GEMMs with every epilogue, in every type; all of their tensors are at the address `there`."""
    rotated = [("none", False, 64, norms) for norms in NORMS[:2]]
    gated = [(activation, True, 0, norms) for activation in ACTIVATIONS for norms in NORMS[:2]]
    others = [(activation, False, 0, norms) for activation in ACTIVATIONS for norms in NORMS]
    results = ((), ("y",), ("y_e4m3",), ("y", "y_e4m3"))
    for (activation, is_gated, rotary_features, norms), adds, results_, dtype, depth in itertools.product(
        [*rotated, *gated, *others], (False, True), results, (torch.float16, torch.bfloat16), (64, 768)
    ):
        pairs, moments = is_gated or rotary_features > 0, "y" in norms or "residual" in norms
        if (pairs and (adds or moments)) or ("residual" in norms and not adds) or (moments and activation != "none"):
            continue  # the launcher takes no such GEMM, nor the next ones
        if (
            (is_gated and len(results_) == 2)
            or (rotary_features and "y_e4m3" in results_)
            or (moments and results_ == ("y_e4m3",))
        ):
            continue
        call = LinearCall(
            x=there, weight=there, bias=there, scale=there if results_ else None, residual=there if adds else None,
            x_moments=there if "x" in norms else None, residual_moments=there if "residual" in norms else None,
            residual_scale=there if "residual" in norms else None, moments=there if "y" in norms else None,
            positions=there if rotary_features else None, frequencies=there if rotary_features else None,
            y=there if not results_ or "y" in results_ else None, y_e4m3=there if "y_e4m3" in results_ else None,
            T=40, K=depth, N=256, rotary_features=rotary_features, y_scale=1.0, activation=ACTIVATIONS[activation],
            gated=int(is_gated), type=DATA_TYPES[dtype],
        )  # fmt: skip
        yield call
        for wide_heads in (0, 1) if rotary_features and not results_ else ():
            heads = LinearCall.from_buffer_copy(call)
            heads.head_scale, heads.rotary_features, heads.wide_heads = there, 256, wide_heads
            yield heads


def rank_choices(call: LinearCall) -> list[int]:
    """All choices for a GEMM."""
    choices, count = (ctypes.c_int * MOST)(), ctypes.c_int()
    library().padfreeRankLinear(ctypes.byref(call), MULTIPROCESSORS, MOST, choices, ctypes.byref(count))
    assert 0 < count.value <= MOST
    return list(choices[: count.value])


def test_every_gemm_has_tilings_and_a_build_has_some_to_try() -> None:
    assert min(len(rank_choices(call)) for call in calls()) > 20


def test_every_tiling_that_there_is_launches() -> None:
    memory = torch.zeros(1 << 25, dtype=torch.uint8, device="cuda")
    launched = 0
    for call in calls(memory.data_ptr()):
        for choice in rank_choices(call):
            status = library().padfreeLinear(ctypes.byref(call), *tiling_of(choice), None)
            fields = {name: getattr(call, name) for name, *_ in LinearCall._fields_}
            assert status == 0, f"{tiling_of(choice)}: {fields}"
            launched += 1
    torch.cuda.synchronize()
    assert launched > 10000


def test_a_choice_of_an_older_engine_that_is_gone_runs_with_another() -> None:
    """The choice is a tile of 128 tokens that four blocks share; an engine of version 0.1.0 may hold it."""
    gone = 128 | 1 << 16 | 1 << 20 | 4 << 24
    x, weight = torch.randn(333, 768, device="cuda").half(), torch.randn(768, 768, device="cuda").half() / 28
    y = x.new_empty(333, 768)
    call = LinearCall(
        x=x.data_ptr(), weight=weight.data_ptr(), y=y.data_ptr(), T=333, K=768, N=768, y_scale=1.0,
        type=DATA_TYPES[torch.float16],
    )  # fmt: skip
    assert gone not in rank_choices(call)
    assert not library().padfreeHasTiling(ctypes.byref(call), *tiling_of(gone))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert library().padfreeLinearByChoice(ctypes.byref(call), gone, stream) == 0
    torch.testing.assert_close(y, x @ weight, rtol=1e-2, atol=1e-2)


def test_builds_choose_from_the_menu() -> None:
    for last, tiling in measured_tilings(768, 768, "none", torch.float16, 1, 600):
        assert tiling != AUTO
        check(last, 768, 768, tiling=tiling)
