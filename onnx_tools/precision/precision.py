# SPDX-License-Identifier: Apache-2.0
"""Gives a rewritten float32 model another activation type, with every cast written out (strong typing).

Rules, node by node in order:
- padfree operators and GEMMs compute in the new type (their statistics and sums are float32 inside), except for
  inputs that are float32 by their description: angles' frequencies, biases of attention;
- reductions, softmax, norms, exponentials and logarithms that stand outside padfree operators stay float32, and so does
  what is computed element by element from their results, up to the next GEMM or padfree operator;
- a constant that the new type cannot hold (a mask's finfo.min, an epsilon of 1e-12) keeps the nodes that read it in
  float32 in the same way, and so does a weight of a GEMM that would overflow or vanish;
- products of positions and other whole numbers (rotary angles, as some exporters write them) stay float32;
- operators that have no such type in the model's opset stay float32 (bfloat16 convolutions before opset 22);
- nodes that make or read an activation known not to fit (see ranges.py) stay float32; PadfreeLayerNorm, and PadfreePool
  of single rows, become standard operators for that; the other padfree operators are refused by name;
- graph inputs and outputs keep their type: results are float32 whatever the precision.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_graphsurgeon as gs

from ..errors import RewriteError
from ..files import Model, export_model
from ..operators import ACT_TYPES
from .constants import HalfConstants
from .conversion import Conversion
from .element_types import check_element_types, infer_element_types
from .rounded_weights import check_weights
from .type_choice import GEMM_OPERATORS
from .unfit_nodes import expand_unfit_nodes


def convert(graph: gs.Graph, model: Model, precision: str, unfit: Mapping[str, str] | None = None) -> Model:
    """A rewritten float32 model with activations and weights of type `precision`.

    The graph is that of the model, and becomes that of the result; the model has no function bodies, and stays as it
    is. Precision is "fp32" (nothing changes), "fp16" or "bf16". `unfit` are activations that it cannot hold, with the
    reasons. The result is checked: every weight against the original, and every node's types. Raises RewriteError for
    numbers that the type cannot hold and for subgraphs, VerificationError when the result is not consistent.
    """
    if precision not in ACT_TYPES:
        raise RewriteError(f"precision is {precision!r}, allowed are {', '.join(ACT_TYPES)}; choose one of them")
    if precision == "fp32":
        return model
    for node in graph.nodes:
        if any(isinstance(value, gs.Graph) for value in node.attrs.values()):
            raise RewriteError(
                f"{node.op} '{node.name}' holds a subgraph, which precision {precision} does not allow; "
                f"choose precision fp32"
            )
    is_expanded = expand_unfit_nodes(graph, unfit or {})
    types = infer_element_types((export_model(graph, model) if is_expanded else model).proto, "fp32")
    constants = HalfConstants(graph, precision)
    multiplied = {tensor.name for node in graph.nodes if node.op in GEMM_OPERATORS for tensor in node.inputs}
    all_unfit = {**(unfit or {}), **constants.find_unfit(multiplied)}
    Conversion(graph, types, constants, precision, all_unfit).run()
    result = export_model(graph, model)
    check_element_types(result.proto, precision)
    check_weights(model, result, precision)
    return result
