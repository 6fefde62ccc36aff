# SPDX-License-Identifier: Apache-2.0
"""PadfreePool of single rows as standard operators, where it has to stay float32 in a half precision graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ..operators import node_attributes


def takes_rows(node: NodeProto) -> bool:
    """Whether a PadfreePool gives rows as they are: first or last tokens', or the one of each sequence."""
    attributes = node_attributes(node)
    return attributes["mode"] in ("first", "last", "each") and not attributes["normalize"]


def standard_pool(node: NodeProto) -> tuple[list[NodeProto], list[TensorProto]]:
    """Nodes and constants that take such rows, zeros for an empty sequence, as a PadfreePool does."""
    stem, (x, cu_seqlens) = node.name or node.output[0], node.input
    constants, new_nodes = list[TensorProto](), list[NodeProto]()

    def constant(name: str, value: npt.ArrayLike, dtype: npt.DTypeLike) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value, dtype), f"{stem}.{name}"))
        return constants[-1].name

    def op(kind: str, result: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = f"{stem}.{result}"
        new_nodes.append(helper.make_node(kind, inputs, [output or name], name=name, **attributes))
        return output or name

    zero, one = (constant(name, value, np.int32) for name, value in (("zero", 0), ("one", 1)))
    begin, second, last = (
        constant(name, [value], np.int64) for name, value in (("begin", 0), ("second", 1), ("last", -1))
    )
    end = constant("end", [np.iinfo(np.int64).max], np.int64)
    starts = op("Slice", "starts", cu_seqlens, begin, last, begin)
    ends, mode = op("Slice", "ends", cu_seqlens, second, end, begin), node_attributes(node)["mode"]
    lengths = op("Sub", "lengths", ends, starts)
    rows = x
    if mode != "each":
        tokens = op("Slice", "tokens", op("Shape", "shape", x), begin, second, begin)
        last_token = op("Sub", "last_token", op("Cast", "token_count", tokens, to=TensorProto.INT32), one)
        slots = starts if mode == "first" else op("Max", "whole", op("Sub", "last_tokens", ends, one), zero)
        indices = op("Min", "places", slots, last_token)  # empty sequences may begin after all tokens
        rows = op("Gather", "rows", x, indices, axis=0)
    some = op("Unsqueeze", "some", op("Greater", "longer", lengths, zero), second)
    op("Where", "result", some, rows, constant("nothing", 0.0, np.float32), output=node.output[0])
    return new_nodes, constants
