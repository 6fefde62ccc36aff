# SPDX-License-Identifier: Apache-2.0
"""The GEMMs of a file whose factors are both rounded to int8, with the scales that the file has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto

from ...errors import RewriteError
from ...files import Array, Floats, Model
from .constants import Constants, attribute_of
from .pairs import Pairs
from .removal import holds_quantization, without_quantization
from .rounding import NAMES, Rounding
from .rounding_nodes import dequantizes

_GEMMS = ("MatMul", "Gemm")
_HAND_ON = ("Identity", "Cast")
_ADVICE = "quantise symmetrically to int8, or leave out --keep-scales and pass --calibrate"


@dataclass(frozen=True, eq=False)
class StoredGemm:
    """A GEMM with x and weight in int8.

    Attributes:
        name: its node's.
        scale: that of x.
        factors: what the columns of x are divided by before, float32 [K], as SmoothQuant does; or None.
        rows: the stored weight, int8 [N,K].
        scales: of its rows, float32 [N].
    """

    name: str
    scale: float
    factors: Floats | None
    rows: npt.NDArray[np.int8]
    scales: Floats

    def weight(self) -> Floats:
        """What the float model multiplies by: float32 [K,N]."""
        divisors = 1.0 if self.factors is None else self.factors[:, np.newaxis]
        values: Floats = self.rows.T * self.scales / divisors
        return values


def stored_gemms(model: Model) -> tuple[StoredGemm, ...]:
    """All such GEMMs of an exported file.

    Raises RewriteError for a zero point, another type or a scale along K, which PadfreeLinearInt8 does not have, and
    where there is no such GEMM.
    """
    if holds_quantization(model.proto):
        gemms = tuple(_GemmReader(model).gemms())
        if gemms:
            return gemms
    raise RewriteError(
        "the file has no GEMM whose input and weight both go through QuantizeLinear and DequantizeLinear, so there are "
        "no scales to keep; leave out --keep-scales and pass --calibrate"
    )


class _GemmReader:
    """Reads one model beside the float model that rewriting makes of it."""

    def __init__(self, model: Model) -> None:
        self._nodes = [node for node in model.proto.graph.node if node.op_type in _GEMMS]
        self._pairs = Pairs(model, Constants(model))
        floats = without_quantization(model).model
        self._float_constants = Constants(floats)
        self._float_nodes = {node.output[0]: node for node in floats.proto.graph.node if node.op_type in _GEMMS}

    def gemms(self) -> Iterator[StoredGemm]:
        for node in self._nodes:
            x, weight = (
                self._dequantizer(node.input[0], _HAND_ON),
                self._dequantizer(node.input[1], (*_HAND_ON, "Transpose")),
            )
            if x is None or self._pairs.rounds_weight(x) or weight is None or not self._pairs.rounds_weight(weight):
                continue
            rounding = self._pairs.rounding(x)
            if rounding.scale.size != 1:
                raise _error(x, f"has {rounding.scale.size} scales of activations, allowed is one")
            _check(x, rounding)
            _check(weight, self._pairs.rounding(weight))
            codes, scales = self._codes_and_scales(node, weight)
            if codes.ndim != 2:
                continue
            if not (scales == scales[:1]).all():
                raise _error(weight, "has scales along the features that are summed, allowed is one per result")
            factors = self._factors(node, codes * scales)
            rows = np.ascontiguousarray(codes.T.astype(np.int8))
            name = node.name or node.output[0]
            yield StoredGemm(name, float(rounding.scale.reshape(())), factors, rows, np.ascontiguousarray(scales[0]))

    def _dequantizer(self, name: str, between: tuple[str, ...]) -> NodeProto | None:
        """The DequantizeLinear from which a tensor comes through nodes that change no number."""
        node = self._pairs.makers.get(name)
        while node is not None and node.op_type in between:
            node = self._pairs.makers.get(node.input[0])
        return node if node is not None and dequantizes(node) else None

    def _codes_and_scales(self, gemm: NodeProto, weight: NodeProto) -> tuple[Array, Floats]:
        """The stored numbers and their scales, both [K,N]."""
        rounding, (codes, _) = self._pairs.rounding(weight), self._pairs.weight(weight)
        scales = np.broadcast_to(rounding.broadcast(rounding.scale, codes.ndim), codes.shape)
        perms, name = list[Any](), gemm.input[1]
        while name != weight.output[0]:
            node = self._pairs.makers[name]
            if node.op_type == "Transpose":
                perms.append(attribute_of(node, "perm"))
            name = node.input[0]
        if attribute_of(gemm, "transB"):
            perms.insert(0, None)
        for perm in reversed(perms):
            codes, scales = codes.transpose(perm), scales.transpose(perm)
        return codes, scales

    def _factors(self, gemm: NodeProto, values: Floats) -> Floats | None:
        """The factors that the float model's weight took over, as divisors of the columns of x."""
        node = self._float_nodes[gemm.output[0]]
        wide = self._float_constants.array(node.input[1])
        if wide is None:
            raise AssertionError("what is dequantised is a constant of the float model")
        weight = (wide.T if attribute_of(node, "transB") else wide).astype(np.float32)
        at = np.abs(values).argmax(axis=1)[:, np.newaxis]
        before, after = (np.take_along_axis(item, at, axis=1)[:, 0] for item in (values, weight))
        divisors = np.divide(before, after, out=np.ones_like(before), where=(before != 0) & (after != 0))
        return None if np.allclose(divisors, 1, rtol=1e-6, atol=0) else divisors.astype(np.float32)


def _check(node: NodeProto, rounding: Rounding) -> None:
    if rounding.kind != TensorProto.INT8:
        raise _error(node, f"has numbers of type {NAMES[rounding.kind]}, allowed is int8")
    if (rounding.zero != 0).any():
        raise _error(node, f"has the zero point {rounding.zero[rounding.zero != 0].flat[0]}, allowed is 0")
    if not np.isfinite(rounding.scale).all():
        raise _error(node, "has a scale that is not finite")


def _error(node: NodeProto, reason: str) -> RewriteError:
    return RewriteError(f"node '{node.name or node.output[0]}' ({node.op_type}) {reason}; {_ADVICE}")
