# SPDX-License-Identifier: Apache-2.0
"""Options only for engines: no rewritten file has them, files that do are read, and networks have all of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import onnx
import pytest
from padfree.onnx_tools import RewriteError, load_model, rewrite
from padfree.onnx_tools.operators import OPERATORS, check_nodes, make_node, node_attributes, padfree_nodes

from tests.frozen.graph_digests import canonical
from tests.support.messages import for_parser
from tests.support.samples import PLAIN_POOL

TESTS = Path(__file__).resolve().parents[2]
FIXTURE = TESTS / "fixtures" / "bert_dynamo.onnx"
WRITTEN_BEFORE = TESTS / "frozen" / "files" / "packed.onnx.gz"


def attribute_names(node: onnx.NodeProto) -> set[str]:
    return {attribute.name for attribute in node.attribute}


def test_rewritten_files_have_no_options_of_engines_and_networks_have_all_attributes() -> None:
    model = rewrite(load_model(FIXTURE), verify=False).model
    for node in padfree_nodes(model.graph):
        assert attribute_names(node).isdisjoint(OPERATORS[node.op_type].outside_engines), node.op_type
    for node in padfree_nodes(for_parser(model, 64).graph):
        every = {spec.name for spec in OPERATORS[node.op_type].attributes if not spec.is_later}
        assert attribute_names(node) == every, node.op_type


def test_a_file_that_was_written_with_them_is_read_and_lowered_alike() -> None:
    """Files of commit 6346721a contain every attribute."""
    before = onnx.load_model_from_string(gzip.decompress(WRITTEN_BEFORE.read_bytes()))
    check_nodes(before)
    shortened, count = onnx.ModelProto(), 0
    shortened.CopyFrom(before)
    for node in padfree_nodes(shortened.graph):
        kept = [item for item in node.attribute if item.name not in OPERATORS[node.op_type].outside_engines]
        count += len(node.attribute) - len(kept)
        del node.attribute[:]
        node.attribute.extend(kept)
    assert count > 0
    assert canonical(for_parser(before, 64).graph) == canonical(for_parser(shortened, 64).graph)


def test_a_node_without_them_has_their_values_elsewhere() -> None:
    node = make_node("PadfreePool", ["x", "cu_seqlens"], ["y"], mode="mean")
    assert attribute_names(node) == {"mode", "normalize"}
    assert node_attributes(node) == {**PLAIN_POOL, "epsilon": 0.0}
    with pytest.raises(RewriteError, match="lacks the attribute 'mode'"):
        make_node("PadfreePool", ["x", "cu_seqlens"], ["y"])
