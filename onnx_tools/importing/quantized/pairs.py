# SPDX-License-Identifier: Apache-2.0
"""What a DequantizeLinear and the QuantizeLinear before it do to numbers: scales, zero points, and weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, TensorProto, helper

from ...errors import RewriteError
from ...files import Array, Model
from .constants import Constants
from .rounding import NAMES, RANGES, Rounding, axis_of
from .rounding_nodes import of_tensorrt, quantizes


class Pairs:
    """The pairs of one model, by their DequantizeLinear nodes."""

    def __init__(self, model: Model, constants: Constants) -> None:
        self._constants = constants
        self.makers: Mapping[str, NodeProto] = {name: node for node in model.proto.graph.node for name in node.output}

    def quantizer(self, node: NodeProto) -> NodeProto | None:
        """The QuantizeLinear before a DequantizeLinear; None where there is none."""
        maker = self.makers.get(node.input[0])
        return maker if maker is not None and quantizes(maker) else None

    def rounds_weight(self, node: NodeProto) -> bool:
        """Whether a DequantizeLinear makes a weight."""
        maker = self.quantizer(node)
        return (node.input[0] if maker is None else maker.input[0]) in self._constants

    def weight(self, node: NodeProto) -> tuple[Array, Array]:
        """The numbers that are stored of a weight, and those that a DequantizeLinear makes of them, float32."""
        maker, rounding = self.quantizer(node), self.rounding(node)
        values = self.values(maker or node, 0)
        try:
            codes = values if maker is None else rounding.quantize(values)
            return codes, rounding.dequantize(codes)
        except (ValueError, IndexError) as error:
            shape_text = "x".join(map(str, values.shape))
            raise pair_error(
                node, f"has {rounding.scale.size} scales along axis {rounding.axis} of a weight {shape_text}"
            ) from error

    def check_same(self, quantize: NodeProto, dequantize: NodeProto) -> None:
        """Raises RewriteError where a pair has different scales or zero points, which would scale or shift numbers."""
        for index, what in ((1, "scale"), (2, "zero point")):
            a, b = (
                np.asarray(self.values(node, index) if _has(node, index) else 0, np.float32).ravel()
                for node in (quantize, dequantize)
            )
            fit = a.size == b.size or 1 in (a.size, b.size)
            if not (fit and (a == b).all()):
                raise pair_error(
                    dequantize, f"has another {what} than '{quantize.name}' ({quantize.op_type}) ahead of it"
                )
        rounding, axis = self.rounding(dequantize), axis_of(quantize)
        if rounding.scale.size > 1 and axis != rounding.axis:
            raise pair_error(
                dequantize,
                f"has its scales along axis {rounding.axis}, and '{quantize.name}' ({quantize.op_type}) ahead of it "
                f"along axis {axis}",
            )

    def values(self, node: NodeProto, position: int) -> Array:
        """The values of a constant input. Raises RewriteError where it is computed."""
        values = self._constants.array(node.input[position])
        if values is None:
            name = node.input[position]
            raise pair_error(node, f"has the input '{name}', which is computed: only constant scales are understood")
        return values

    def rounding(self, node: NodeProto) -> Rounding:
        """The rounding of a DequantizeLinear and the QuantizeLinear before it."""
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if attributes.get("block_size"):
            raise pair_error(node, f"has scales for blocks of {attributes['block_size']} numbers")
        scale = self.values(node, 1).astype(np.float32)
        # Scales of activations may be infinite, as ModelOpt's of masks that hold -inf are: they are not needed.
        check_scale(node, scale, scale > 0)
        has_zero = _has(node, 2)
        zero = self.values(node, 2) if has_zero else np.zeros((), np.float32)
        kind = self._constants.kind(node.input[2]) if has_zero else self._stored_kind(node)
        if kind not in RANGES:
            raise pair_error(
                node, f"has numbers of type {TensorProto.DataType.Name(kind)}, known are {_known_operators()}"
            )
        return Rounding(kind, scale, zero, axis_of(node))

    def _stored_kind(self, node: NodeProto) -> int:
        """The type of the numbers that a DequantizeLinear without zero point reads."""
        if of_tensorrt(node):
            return int(TensorProto.FLOAT8E4M3FN)
        maker = self.makers.get(node.input[0])
        if maker is None or not quantizes(maker):
            return self._constants.kind(node.input[0])
        attributes = {item.name: helper.get_attribute_value(item) for item in maker.attribute}
        if attributes.get("output_dtype"):
            return int(attributes["output_dtype"])
        return self._constants.kind(maker.input[2]) if _has(maker, 2) else int(TensorProto.UINT8)


def _has(node: NodeProto, position: int) -> bool:
    """Whether a node has an input, which may be left out."""
    return len(node.input) > position and bool(node.input[position])


def check_scale(node: NodeProto, scale: Array, right: Array) -> None:
    """Raises RewriteError naming the first of the scales that is not right."""
    if not right.all():
        raise pair_error(node, f"has the scale {scale[~right].flat[0]:g}, allowed are finite numbers above 0")


def _known_operators() -> str:
    return ", ".join(NAMES.values())


def pair_error(node: NodeProto, reason: str) -> RewriteError:
    """The error for a node that cannot be taken out."""
    name = node.name or (node.output[0] if node.output else "")
    return RewriteError(
        f"node '{name}' ({node.op_type}) {reason}; rewrite the float model that the file was quantised from, with "
        "--precision fp8 and --calibrate for e4m3"
    )
