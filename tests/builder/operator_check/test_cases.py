# SPDX-License-Identifier: Apache-2.0
"""What `padfree doctor --check` runs, and how it judges, with onnxruntime in place of a GPU, working and broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from padfree.builder import BuildError
from padfree.builder.operator_check.cases import Case, all_cases
from padfree.builder.operator_check.checking import RunFailedError, check_cases
from padfree.builder.operator_check.engines import Ran
from padfree.builder.operator_check.graphs import CaseGraph
from padfree.builder.operator_check.peaks import Peaks
from padfree.builder.operator_check.reference import LARGEST_ERRORS, difference, reference_results
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.files.ort_session import open_session
from padfree.onnx_tools.operators import OPERATORS, node_attributes, padfree_nodes, with_functions
from padfree.onnx_tools.precision.rounding import with_rounding
from padfree.runtime import SessionError
from padfree.runtime.gpu.device import Device

from tests.support import reference

H200, A100 = Device(0, "NVIDIA H200", 9, 0), Device(0, "NVIDIA A100", 8, 0)
PEAKS = Peaks(9, 0, 132, 1830.0, 3000.0)
Change = Callable[[dict[str, np.ndarray]], None]


class CpuRunner:
    """Runs graphs in onnxruntime, with every tensor rounded as on a GPU; `change` does what a broken kernel would."""

    def __init__(self, change: Change | None = None) -> None:
        self._change = change

    def run(self, graph: CaseGraph, model: onnx.ModelProto) -> Ran:
        half = graph.precision != "fp32"
        runs = with_rounding(Model(model), graph.precision).proto if half else with_functions(model)
        names = [item.name for item in graph.outputs]
        outputs = dict(zip(names, open_session(Model(runs)).run(names, graph.feeds), strict=True))
        if self._change is not None:
            self._change(outputs)
        return Ran(outputs, 12.5)


def cases_of(operator: str, kind: str) -> list[Case]:
    return [case for case in all_cases() if case.operator.startswith(operator) and case.kind == kind]


def checked_nodes() -> list[tuple[str, str, dict[str, Any]]]:
    """Operator, kind and attributes of every node that is checked."""
    results = []
    for case in all_cases():
        graph = case.make()
        model = graph.model()
        nodes = [node for node in padfree_nodes(model.graph) if node.name in graph.checked_nodes]
        assert nodes, case
        results += [(node.op_type, case.kind, node_attributes(node)) for node in nodes]
    return results


@pytest.mark.slow
def test_every_operator_is_there_in_every_type() -> None:
    nodes = checked_nodes()
    there = {(operator, kind) for operator, kind, _ in nodes}
    for operator, spec in OPERATORS.items():
        activations = any("act" in item.type for item in (*spec.inputs, *spec.outputs))
        if activations and operator not in ("PadfreeLinearFp8", "PadfreeLinearInt8"):
            assert {(operator, kind) for kind in spec.plugin_precisions} <= there, operator
        else:
            assert any(name == operator for name, _ in there), operator
        if any(item.type == "fp8" for item in spec.outputs):
            assert (operator, "fp8") in there
        if any(item.type == "int8" for item in spec.outputs):
            assert (operator, "int8") in there
    biases = {attributes["bias"] for operator, _, attributes in nodes if operator == "PadfreeAttention"}
    assert biases == set(OPERATORS["PadfreeAttention"].attribute("bias").allowed or ())
    modes = {attributes["mode"] for operator, _, attributes in nodes if operator == "PadfreePool"}
    assert modes >= {"first", "last", "mean", "max"}


def test_batches_have_all_kinds_of_lengths() -> None:
    graph = cases_of("PadfreeAttention", "fp16")[0].make()
    assert {0, 1} < set(graph.lengths)
    assert max(graph.lengths) > 256
    assert graph.feeds["qkv"].shape[0] > sum(graph.lengths)


QUICK_OPERATORS = ("PadfreePool", "PadfreeLayerNorm", "PadfreeLinearFp8", "PadfreeLinearInt8")
QUICK = [case for case in all_cases() if case.operator in QUICK_OPERATORS]
QUICK += [case for case in all_cases() if case.variant in ("short sequences", "offsets, slots, positions")]


@pytest.mark.slow
def test_what_only_rounds_is_right() -> None:
    results = list(check_cases(QUICK, CpuRunner(), H200, PEAKS))
    assert [result.state for result in results] == ["right"] * len(QUICK)
    for result in results:
        assert result.relative is not None
        assert result.allowed is not None
        assert result.relative <= result.allowed / 4, result  # leaves room for sums in another order
        assert result.floor_us
        assert result.time_us == 12.5


def zero_row(outputs: dict[str, np.ndarray]) -> None:
    """The row of a token that no block wrote."""
    outputs["out_0"] = outputs["out_0"].copy()
    outputs["out_0"][333] = 0


def other_column(outputs: dict[str, np.ndarray]) -> None:
    """One head's results instead of another's."""
    outputs["out_0"] = outputs["out_0"].copy()
    outputs["out_0"][:, :64] = outputs["out_0"][:, 64:128]


def not_finite(outputs: dict[str, np.ndarray]) -> None:
    """A number that is not finite, as from a sequence without a maximum."""
    outputs["out_0"] = outputs["out_0"].copy()
    outputs["out_0"][7, 3] = np.nan


def filler(outputs: dict[str, np.ndarray]) -> None:
    """A number that is not finite in a row of filler, which belongs to no sequence."""
    outputs["out_0"] = outputs["out_0"].copy()
    outputs["out_0"][-1] = np.nan


@pytest.mark.parametrize("kind", ["fp32", "fp16", "bf16", "fp8"])
@pytest.mark.parametrize(
    ("change", "state"), [(zero_row, "wrong"), (other_column, "wrong"), (not_finite, "wrong"), (filler, "right")]
)
def test_broken_kernels_are_wrong(kind: str, change: Change, state: str) -> None:
    case = next(item for item in cases_of("PadfreeEmbedding", kind))
    (result,) = check_cases([case], CpuRunner(change), H200, PEAKS)
    assert result.state == state
    assert bool(result.detail) == (state == "wrong")


def test_whole_numbers_have_to_be_equal() -> None:
    def off_by_one(outputs: dict[str, np.ndarray]) -> None:
        outputs["out_1"] = outputs["out_1"] + (np.arange(len(outputs["out_1"])) == 5)

    (result,) = check_cases(cases_of("PadfreeSchedule", "int32"), CpuRunner(off_by_one), H200, PEAKS)
    assert result.detail == "1 of 1018 whole numbers are wrong"


def test_e4m3_is_not_for_every_gpu() -> None:
    case = cases_of("PadfreeLinearFp8", "fp8")[0]
    (result,) = check_cases([case], CpuRunner(), A100, PEAKS)
    assert (result.state, result.time_us) == ("not here", None)
    assert "needs compute capability 8.9" in result.detail


def test_what_is_refused_and_what_breaks() -> None:
    class Refusing:
        def __init__(self) -> None:
            self.calls = 0

        def run(self, *_: Any) -> Ran:
            self.calls += 1
            raise (BuildError("no kernel") if self.calls == 1 else SessionError("CUDA failed"))

    actual = check_cases(cases_of("PadfreePool", "fp16")[:3], Refusing(), H200, PEAKS)
    assert (first := next(actual)).state == "failed"
    assert first.detail == "no kernel"
    with pytest.raises(RunFailedError) as caught:
        next(actual)
    assert (caught.value.result.state, caught.value.result.detail) == ("failed", "CUDA failed")


@pytest.mark.slow
def test_references_are_right_in_float64() -> None:
    """Compared with NumPy, for attention, the operator with the most code of its own."""
    graph = next(item for item in cases_of("PadfreeAttention", "fp32") if item.variant == "bias by distance").make()
    model = graph.model()
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    q, k, v = np.split(graph.feeds["qkv"].astype(np.float64) + weights["qkv_bias"], 3, axis=1)
    cu_seqlens = np.concatenate([[0], np.cumsum(graph.lengths)])
    sizes = {"num_heads": 12, "head_size": 64, "scale": 1 / 8}
    wanted = reference.attention(q, k, v, cu_seqlens, **sizes, distance_bias=weights["distance_bias"])
    right = reference_results(graph, model).outputs
    assert difference(graph, {"out_0": wanted}, right).relative < LARGEST_ERRORS["fp32"] / 10


@pytest.mark.slow
def test_sequences_continue_another_one() -> None:
    graph = next(item for item in cases_of("PadfreeAttention", "fp32") if item.variant == "shared prefix").make()
    q, k, v = (graph.feeds[name].astype(np.float64) for name in "qkv")
    cu_seqlens, prefix = np.concatenate([[0], np.cumsum(graph.lengths)]), graph.feeds["prefix"]
    assert {-1} < set(prefix.tolist())
    sizes = {"num_heads": 8, "head_size": 128, "scale": 128**-0.5, "window": (-1, 0)}
    right = reference_results(graph, graph.model()).outputs
    for given, is_right in ((prefix, True), (None, False)):
        wanted = reference.attention(q, k, v, cu_seqlens, **sizes, prefix=given)
        error = difference(graph, {"out_0": wanted}, right).relative
        assert (error < LARGEST_ERRORS["fp32"] / 10, error > 2 * LARGEST_ERRORS["bf16"]) == (is_right, not is_right)


def test_rates_are_those_of_data_sheets() -> None:
    a100, l4 = Peaks(8, 0, 108, 1410.0, 1700.0), Peaks(8, 9, 60, 2040.0, 250.0)
    assert a100.tflops("fp16") == pytest.approx(312, rel=0.01)
    assert a100.tflops("fp32") == pytest.approx(19.5, rel=0.01)
    assert l4.tflops("bf16") == pytest.approx(125, rel=0.01)
    assert PEAKS.tflops("fp8") == pytest.approx(2 * 989, rel=0.01)
    assert Peaks(12, 1, 48, 2000.0, 250.0).tflops("fp16") is None


def test_a_floor_is_what_takes_longer() -> None:
    assert PEAKS.floor_us("PadfreePool", "fp16", 3_000_000, 0.0) == (pytest.approx(1.0), "bytes")
    us, by = PEAKS.floor_us("PadfreeLinear", "fp16", 3_000_000, 989e7)
    assert (us, by) == (pytest.approx(10.0, rel=0.01), "flops")
    unknown = Peaks(12, 1, 48, 2000.0, 3000.0)
    assert unknown.floor_us("PadfreeLinear", "fp16", 3_000_000, 989e7) == (pytest.approx(1.0), "bytes")


def test_bytes_are_those_of_the_operator() -> None:
    """Rows and offsets are read, and rows are written; the casts around the operator do not count."""
    graph = next(item for item in cases_of("PadfreePool", "bf16") if item.variant == "first").make()
    moved = reference_results(graph, graph.model()).moved_bytes
    assert moved == 2 * 768 * (graph.tokens + len(graph.lengths)) + 4 * (len(graph.lengths) + 1)
