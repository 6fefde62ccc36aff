# SPDX-License-Identifier: Apache-2.0
"""The padfree operators: descriptions, nodes, and bodies of standard ONNX operators."""

from padfree.contract.names import DOMAIN

from .catalog import DOMAIN_VERSION, MAX_HEAD_SIZE, OPERATORS
from .functions import (
    ACT_TYPES,
    MAX_OPSET,
    MIN_OPSET,
    OVERLOAD_IR_VERSION,
    add_functions,
    check_opset,
    functions_for,
    opset_of,
    overload_of,
    with_functions,
    without_functions,
)
from .linear_specs import MAX_NORMED_WIDTH, MAX_SCALE, MOMENTS_GROUP, NORMED_HEAD, WIDE_HEAD
from .nodes import (
    check_node,
    check_nodes,
    make_node,
    node_attributes,
    padfree_nodes,
    set_attribute,
)
from .spec import AttributeSpec, AttributeValue, Condition, OperatorSpec, TensorSpec

__all__ = [
    "ACT_TYPES",
    "DOMAIN",
    "DOMAIN_VERSION",
    "MAX_HEAD_SIZE",
    "MAX_NORMED_WIDTH",
    "MAX_OPSET",
    "MAX_SCALE",
    "MIN_OPSET",
    "MOMENTS_GROUP",
    "NORMED_HEAD",
    "OPERATORS",
    "OVERLOAD_IR_VERSION",
    "WIDE_HEAD",
    "AttributeSpec",
    "AttributeValue",
    "Condition",
    "OperatorSpec",
    "TensorSpec",
    "add_functions",
    "check_node",
    "check_nodes",
    "check_opset",
    "functions_for",
    "make_node",
    "node_attributes",
    "opset_of",
    "overload_of",
    "padfree_nodes",
    "set_attribute",
    "with_functions",
    "without_functions",
]
