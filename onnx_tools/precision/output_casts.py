# SPDX-License-Identifier: Apache-2.0
"""Outputs of another type than the one they are computed in."""

from __future__ import annotations

from collections.abc import MutableSequence

from onnx import NodeProto, helper


def cast_output(nodes: MutableSequence[NodeProto], output: str, inner: str, cast: str, kind: int) -> None:
    """Renames an output's tensor to `inner`, and adds a node `cast` that makes the output of it, in place."""
    for node in nodes:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name == output:
                    names[position] = inner
    nodes.append(helper.make_node("Cast", [inner], [output], name=cast, to=kind))
