# SPDX-License-Identifier: Apache-2.0
"""The node PadfreeLinear of a GEMM and what is added to it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from ...analysis import Editor


def padfree_linear(
    editor: Editor,
    name: str,
    tensors: Sequence[gs.Tensor | None],
    output: gs.Tensor,
    *,
    activation: str,
    gated: bool = False,
) -> gs.Node:
    """Adds a PadfreeLinear without norms, under the name of the GEMM that it replaces: profiles tell layers by it.

    `tensors` are x, weight, bias and residual; the last two may be None.
    """
    _, _, bias, residual = tensors
    linear_node = editor.padfree(
        "PadfreeLinear",
        [tensor for tensor in tensors if tensor is not None],
        [output],
        activation=activation,
        has_bias=int(bias is not None),
        has_residual=int(residual is not None),
        gated=int(gated),
        rotary_features=0,
        x_epsilon=0.0,
        residual_epsilon=0.0,
    )
    linear_node.name = name or linear_node.name
    return linear_node
