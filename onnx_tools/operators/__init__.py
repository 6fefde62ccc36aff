# SPDX-License-Identifier: Apache-2.0
"""The padfree operators: descriptions, nodes, and bodies of standard ONNX operators."""

from .catalog import DOMAIN, DOMAIN_VERSION, OPERATORS
from .nodes import check_node, check_nodes, make_node, node_attributes, padfree_nodes
from .spec import AttributeSpec, AttributeValue, Condition, OperatorSpec, TensorSpec

__all__ = [
    "DOMAIN",
    "DOMAIN_VERSION",
    "OPERATORS",
    "AttributeSpec",
    "AttributeValue",
    "Condition",
    "OperatorSpec",
    "TensorSpec",
    "check_node",
    "check_nodes",
    "make_node",
    "node_attributes",
    "padfree_nodes",
]
