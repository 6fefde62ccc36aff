# SPDX-License-Identifier: Apache-2.0
"""Whether what reports say is true of the graph: what stays padded, and one count of the work for all figures."""

from __future__ import annotations

import json

import pytest
from onnx import ModelProto, TensorProto
from padfree.builder.cli.coverage import verdict
from padfree.builder.coverage import report as priced
from padfree.onnx_tools import CoverageReport, RewriteResult
from padfree.onnx_tools.cost import Lengths
from padfree.onnx_tools.report import percent

LENGTHS = Lengths(batch=4, mean=20.0, maximum=32)


def assert_report_is_true(result: RewriteResult) -> None:
    report = result.report
    assert report.complete == (not touches_padding(result.model)), str(report)
    assert report.complete == (not report.islands)
    assert_one_count(report)


def touches_padding(model: ModelProto) -> bool:
    """Whether anything is computed from PadfreeUnpack's results, or output beyond the padded interface's contract."""
    readers: dict[str, list[str]] = {}
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.op_type)
    by_contract = any(node.op_type == "PadfreeIndex" for node in model.graph.node)
    outputs = {value.name for value in model.graph.output}
    if not by_contract:
        return any(node.op_type == "PadfreeUnpack" for node in model.graph.node)
    waiting, movers = [node.output[0] for node in model.graph.node if node.op_type == "PadfreeUnpack"], set[str]()
    while waiting:
        name = waiting.pop()
        read = [node for node in model.graph.node if name in node.input]
        if any(node.op_type not in ("Cast", "Transpose", "Identity") for node in read) or (
            not read and name not in outputs
        ):
            return True
        waiting += [node.output[0] for node in read]
        movers |= {node.name for node in read}
    # Numbers of padded tokens that nothing was unpacked for: they are looked up by the inputs.
    floats = {value.name for value in model.graph.value_info if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    grids = {
        value.name
        for value in model.graph.value_info
        if [dim.dim_param for dim in value.type.tensor_type.shape.dim[:2]] == ["B", "S"]
    }
    prepared = ("Cast", "Unsqueeze", "PadfreeUnpack")  # inputs in another type, and the interface's own results
    return any(makers[name].op_type not in prepared and makers[name].name not in movers for name in floats & grids)


def assert_one_count(report: CoverageReport) -> None:
    """The summary, the table and the JSON give the same shares."""
    shown = priced(json.loads(json.dumps(report.to_dict())), LENGTHS)
    linear = shown["costs"]["parts"]["linear"]["packed_share"]
    assert shown["packed_gemm_share"] == pytest.approx(linear)
    said = "no linear layer is counted" if linear is None else f"packed: {percent(linear)} of the linear layers' work"
    assert said in str(report)
    if not report.complete:
        assert "complete: nothing" not in verdict(shown)
        whole = shown["costs"]["parts"]["all"]["packed_share"]
        assert f"{percent(whole)} of all FLOPs" in verdict(shown)
        if linear is not None:
            assert f"{percent(linear)} of the linear layers' work" in verdict(shown)
