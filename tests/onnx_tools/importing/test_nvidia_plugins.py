# SPDX-License-Identifier: Apache-2.0
"""Files of NVIDIA's BERT demo are refused by name, with what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.onnx_tools import ModelFileError, RewriteError, rewrite
from padfree.onnx_tools.importing.nvidia import PLUGINS


def model(operator: str, domain: str = "", **attributes: object) -> ModelProto:
    """One plugin node behind inputs of a variable-length engine."""
    inputs = ("input_ids", "segment_ids", "cu_seqlens", "max_seqlen")
    node = helper.make_node(operator, list(inputs), ["y"], "the_node", domain=domain, **attributes)
    given = [helper.make_tensor_value_info(name, TensorProto.INT32, ["n"]) for name in inputs]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 16, 1, 1])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph([node], "g", given, [result]), opset_imports=opsets)


@pytest.mark.parametrize("operator", sorted(PLUGINS))
@pytest.mark.parametrize("domain", ["", "trt.plugins"])
@pytest.mark.parametrize("interface", ["packed", "padded", "varseqlen"])
def test_a_plugin_node_is_named(operator: str, domain: str, interface: str) -> None:
    told = rf"'the_node' \({operator}\) is one of NVIDIA's plugins.*--interface varseqlen"
    with pytest.raises(RewriteError, match=told):
        rewrite(model(operator, domain, type_id=1), interface=interface)


@pytest.mark.parametrize("attributes", [{"type_id": 2}, {"type_id": 1, "dq_probs": 0.5}])
def test_int8_is_named(attributes: dict[str, object]) -> None:
    with pytest.raises(RewriteError, match="computes in int8, with scales that no float model holds"):
        rewrite(model("CustomQKVToContextPluginDynamic", **attributes))


@pytest.mark.parametrize("suffix", [".engine", ".plan", ".trt"])
def test_an_engine_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bert{suffix}"
    path.write_bytes(b"ftrt" + bytes(range(256)))
    with pytest.raises(ModelFileError, match=r"is an engine of TensorRT's by its name.*migrating"):
        rewrite(path)
